# evaluations -> runs.csv, tables, plots, report
EVALUATIONS = [
    f"{STUDY}/runs/{run.key}/evaluations/{protocol.name}.json"
    for run in PLAN.runs
    for protocol in PLAN.study.evaluations_of(run.experiment)
]

TABLES = table_names(PLAN)


rule tables:
    input:
        EVALUATIONS,
    output:
        f"{STUDY}/runs.csv",
        *[
            report(
                f"{STUDY}/tables/{table}.{ending}",
                caption="../report/table.rst",
                category="tables",
                labels={"table": table, "format": ending},
            )
            for table in TABLES
            for ending in ("csv", "md", "tex")
        ],
    log:
        f"{STUDY}/logs/tables.log",
    params:
        # an edit of the study redraws what it changes
        contents=PLAN.study.model_dump_json(),
        contrasts=str(PLAN.contrasts),
        code=lambda w: code_version(
            "capsbench.analysis.collect:collect",
            "capsbench.analysis.reference:redraw_tables",
        ),
        published=lambda w: content_version("analysis/published.yaml"),
        names=lambda w: shown_names(PLAN),
    shell:
        "capsbench tables {STUDY_FILE:q} > {log}"


rule plots:
    input:
        EVALUATIONS,
    output:
        *[
            report(
                f"{STUDY}/plots/{plot}.{ending}",
                caption="../report/plot.rst",
                category="plots",
                labels={"plot": plot, "format": ending},
            )
            for plot in PLAN.study.plots
            for ending in ("png", "svg")
        ],
    log:
        f"{STUDY}/logs/plots.log",
    params:
        # an edit of the study redraws what it changes
        contents=PLAN.study.model_dump_json(),
        contrasts=str(PLAN.contrasts),
        code=lambda w: code_version(
            "capsbench.analysis.collect:collect",
            "capsbench.analysis.reference:redraw_plots",
        ),
        published=lambda w: content_version("analysis/published.yaml"),
        names=lambda w: shown_names(PLAN),
    shell:
        "capsbench plots {STUDY_FILE:q} > {log}"


rule study_report:
    input:
        rules.tables.output,
        rules.plots.output,
    output:
        report(
            f"{STUDY}/report.html",
            caption="../report/page.rst",
            category="page",
            labels={"page": "report.html"},
        ),
    log:
        f"{STUDY}/logs/report.log",
    params:
        code=lambda w: code_version("capsbench.analysis.reference:redraw_report"),
        template=lambda w: [
            content_version(f"analysis/report.{ending}")
            for ending in ("html.j2", "css", "js")
        ],
    shell:
        "capsbench report {STUDY_FILE:q} > {log}"
