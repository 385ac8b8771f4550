# raw files -> checked files, with counts and fingerprints that the trainings rest on


rule data:
    input:
        lambda w: sources(f"capsbench.data.{w.name}", "capsbench.data.prepare"),
    output:
        f"{STUDY}/data/{{name}}.json",
    log:
        f"{STUDY}/logs/data/{{name}}.log",
    shell:
        "capsbench data fetch {wildcards.name} --manifest {output} --log {log}"
