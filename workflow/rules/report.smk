# evaluations -> runs.csv, tables, plots, report
EVALUATIONS = [
    f"{STUDY}/runs/{run.key}/evaluations/{protocol}.json"
    for run in PLAN.runs
    for protocol in PLAN.study.evaluations
]
PUBLISHED = source_path(PACKAGE / "analysis/published.yaml")


rule tables:
    input:
        EVALUATIONS,
        sources("capsbench.analysis.tables", "capsbench.analysis.collect"),
        PUBLISHED,
    output:
        f"{STUDY}/runs.csv",
        report(
            expand(
                f"{STUDY}/tables/{{table}}.{{ending}}",
                table=PLAN.tables,
                ending=["csv", "md", "tex"],
            ),
            caption="../report/table.rst",
            category="tables",
        ),
    log:
        f"{STUDY}/logs/tables.log",
    params:
        study=STUDY_FILE,
        # an edit of the study redraws what it changes
        contents=PLAN.study.model_dump_json(),
    shell:
        "capsbench tables {params.study} > {log}"


rule plots:
    input:
        EVALUATIONS,
        sources("capsbench.analysis.plots"),
    output:
        report(
            expand(
                f"{STUDY}/plots/{{plot}}.{{ending}}",
                plot=PLAN.study.plots,
                ending=["png", "svg"],
            ),
            caption="../report/plot.rst",
            category="plots",
        ),
    log:
        f"{STUDY}/logs/plots.log",
    params:
        study=STUDY_FILE,
        # an edit of the study redraws what it changes
        contents=PLAN.study.model_dump_json(),
    shell:
        "capsbench plots {params.study} > {log}"


rule study_report:
    input:
        rules.tables.output,
        rules.plots.output,
        sources("capsbench.analysis.report", "capsbench.analysis.collect"),
        source_path(PACKAGE / "analysis/report.html.j2"),
    output:
        f"{STUDY}/report.html",
    log:
        f"{STUDY}/logs/report.log",
    params:
        study=STUDY_FILE,
    shell:
        "capsbench report {params.study} > {log}"
