# raw files -> checked files and caches, with counts and fingerprints that the trainings rest on


rule data:
    input:
        lambda w: sources(
            *CATALOGUE[PLAN.study.experiments[w.experiment].data.name].modules,
            "capsbench.data.prepare",
        ),
    output:
        f"{STUDY}/data/{{experiment}}.json",
    log:
        f"{STUDY}/logs/data/{{experiment}}.log",
    priority: 1  # a mistake should show before anything trains
    params:
        study=STUDY_FILE,
        data=lambda w: PLAN.study.experiments[w.experiment].data.model_dump_json(),
    shell:
        "capsbench data prepare {params.study} {wildcards.experiment}"
        " --manifest {output} --log {log}"
