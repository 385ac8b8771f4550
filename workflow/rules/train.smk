# checked data -> run folder; run.yaml and the checkpoint are not declared, so that they survive a failed job


rule train:
    input:
        data=f"{STUDY}/data/{{experiment}}.json",
        # of the run that this one is matched to: where its training stops
        matched=lambda w: expand(
            f"{STUDY}/runs/{{key}}/evaluations/familiar.json",
            key=[key for key in [PLAN.cell(**w).matched_key] if key],
        ),
    output:
        model=f"{STUDY}/runs/{RUN}/model.pt",
        metrics=f"{STUDY}/runs/{RUN}/metrics.csv",
    log:
        f"{STUDY}/logs/train/{RUN}.log",
    threads: THREADS
    resources:
        gpu=gpus,
        mem_mb=asked("mem_mb", here=0),
        runtime=asked("training_minutes", here=None),
    params:
        run=lambda w: PLAN.cell(**w).key,
        # an edit of the study or of the code reruns the runs that it changes, and no others
        digest=lambda w: PLAN.cell(**w).digest,
        code=lambda w: training_version(PLAN.cell(**w)),
    shell:
        "capsbench train {STUDY_FILE:q} {params.run} --log {log}"
