# checked data -> run folder; run.yaml and the checkpoint are not declared, so that they survive a failed job


def planned(wildcards):
    return PLAN.run(RUN.format(**wildcards))


rule train:
    input:
        data=lambda w: f"{STUDY}/data/{planned(w).data.name}.json",
        sources=lambda w: sources(
            "capsbench.training",
            f"capsbench.models.{planned(w).model}",
            f"capsbench.data.{planned(w).data.name}",
        ),
    output:
        model=f"{STUDY}/runs/{RUN}/model.pt",
        metrics=f"{STUDY}/runs/{RUN}/metrics.csv",
    log:
        f"{STUDY}/logs/train/{RUN}.log",
    params:
        # an edit of the study reruns the runs that it changes, and no others
        digest=lambda w: planned(w).digest,
    threads: max(run.training.threads for run in PLAN.runs)
    resources:
        gpu=int(bool(count_gpus()) and DEVICES != {"cpu"}),
    shell:
        "capsbench train {STUDY_FILE} {wildcards.experiment}/{wildcards.variant}/seed{wildcards.seed} --log {log}"
