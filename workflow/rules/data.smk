# raw files -> checked files and caches, with counts and fingerprints that the trainings rest on


rule data:
    output:
        f"{STUDY}/data/{{experiment}}.json",
    log:
        f"{STUDY}/logs/data/{{experiment}}.log",
    priority: 1  # a mistake should show before anything trains
    params:
        data=lambda w: PLAN.data[w.experiment].model_dump_json(),
        code=lambda w: data_version(PLAN.data[w.experiment]),
    shell:
        "capsbench data prepare {STUDY_FILE:q} {wildcards.experiment}"
        " --manifest {output} --log {log}"
