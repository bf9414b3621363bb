"""Reports: tables, figures and pages made from records and nothing else; which records is for the caller to say.

records --select, tables, robustness--> Section (model.py) --page.py--> one HTML file, offline
                                                           --pictures.py--> PNG files
"""
