# run folder -> predictions and one file per protocol


rule evaluate:
    input:
        model=f"{STUDY}/runs/{RUN}/model.pt",
    output:
        predictions=f"{STUDY}/runs/{RUN}/predictions.npz",
        evaluations=expand(
            f"{STUDY}/runs/{RUN}/evaluations/{{protocol}}.json",
            protocol=PLAN.study.evaluations,
            allow_missing=True,
        ),
    log:
        f"{STUDY}/logs/evaluate/{RUN}.log",
    threads: max(run.training.threads for run in PLAN.runs)
    resources:
        gpu=lambda w: requested_gpus(PLAN.cell(**w).training.device),
    params:
        study=STUDY_FILE,
        run=lambda w: PLAN.cell(**w).key,
        code=lambda w: evaluation_version(PLAN.cell(**w), PLAN.study.evaluations),
    shell:
        "capsbench evaluate {params.study} {params.run} --log {log}"
