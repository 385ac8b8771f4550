# run folder -> predictions and one file a protocol


rule evaluate:
    input:
        model=f"{STUDY}/runs/{RUN}/model.pt",
        sources=lambda w: sources(
            "capsbench.evaluation", f"capsbench.data.{planned(w).data.name}"
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
    shell:
        "capsbench evaluate {STUDY_FILE} {wildcards.experiment}/{wildcards.variant}/seed{wildcards.seed} --log {log}"
