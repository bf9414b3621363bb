"""Reports: tables, figures and pages made from records and nothing else.

records --specs (what a table of the paper asks for)--> Section (model.py) --page.py--> one HTML file, offline
                                                                          --pictures.py--> PNG files
"""
