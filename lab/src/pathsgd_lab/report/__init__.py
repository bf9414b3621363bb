"""Reports: tables, figures and pages made from records and nothing else.

records --select, tables, robustness--> Section (model.py) --page.py--> one HTML file, offline
                                                           --pictures.py--> PNG files
"""
