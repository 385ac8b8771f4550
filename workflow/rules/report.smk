# evaluations -> runs.csv, tables, plots, report
EVALUATIONS = [
    f"{STUDY}/runs/{run.key}/evaluations/{protocol}.json"
    for run in PLAN.runs
    for protocol in PLAN.study.protocols
]

TABLES = table_names(PLAN)


rule tables:
    input:
        EVALUATIONS,
    output:
        f"{STUDY}/runs.csv",
        report(
            expand(
                f"{STUDY}/tables/{{table}}.{{ending}}",
                table=TABLES,
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
        contrasts=str(PLAN.contrasts),
        code=lambda w: code_version("capsbench.analysis.tables:write_tables"),
        runs=lambda w: code_version("capsbench.analysis.collect:collect"),
        published=lambda w: content_version("analysis/published.yaml"),
        names=lambda w: shown_names(PLAN),
    shell:
        "capsbench tables {params.study} > {log}"


rule plots:
    input:
        EVALUATIONS,
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
        contrasts=str(PLAN.contrasts),
        code=lambda w: code_version("capsbench.analysis.plots:write_plots"),
        runs=lambda w: code_version("capsbench.analysis.collect:collect"),
        names=lambda w: shown_names(PLAN),
    shell:
        "capsbench plots {params.study} > {log}"


rule study_report:
    input:
        rules.tables.output,
        rules.plots.output,
    output:
        f"{STUDY}/report.html",
    log:
        f"{STUDY}/logs/report.log",
    params:
        study=STUDY_FILE,
        code=lambda w: code_version("capsbench.analysis.report:write_report"),
        template=lambda w: [
            content_version(f"analysis/report.{ending}")
            for ending in ("html.j2", "css", "js")
        ],
    shell:
        "capsbench report {params.study} > {log}"
