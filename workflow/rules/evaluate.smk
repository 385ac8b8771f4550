# run folder -> predictions and one file a protocol


rule evaluate:
    input:
        model=f"{STUDY}/runs/{RUN}/model.pt",
        sources=lambda w: sources(
            "capsbench.evaluation", *CATALOGUE[PLAN.cell(**w).data.name].modules
        ),
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
        gpu=gpus,
    params:
        study=STUDY_FILE,
        run=lambda w: PLAN.cell(**w).key,
    shell:
        "capsbench evaluate {params.study} {params.run} --log {log}"
