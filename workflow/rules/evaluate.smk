# run folder -> predictions and one file per protocol

# Protocols that need scores alone share one pass over the test set; each of the others is a job of its own, and may be
# of some experiments alone.
ON_SCORES = [
    p for p in PLAN.study.evaluations if PROTOCOLS[p.name].facts.get("scores_alone")
]
ON_NETWORKS = {
    (experiment, p.name): p
    for experiment in PLAN.study.experiments
    for p in PLAN.study.evaluations_of(experiment)
    if p not in ON_SCORES
}


rule evaluate:
    input:
        model=f"{STUDY}/runs/{RUN}/model.pt",
    output:
        predictions=f"{STUDY}/runs/{RUN}/predictions.npz",
        evaluations=expand(
            f"{STUDY}/runs/{RUN}/evaluations/{{protocol}}.json",
            protocol=[p.name for p in ON_SCORES],
            allow_missing=True,
        ),
    log:
        f"{STUDY}/logs/evaluate/{RUN}.log",
    threads: THREADS
    resources:
        gpu=gpus,
        mem_mb=asked("mem_mb", here=0),
        runtime=asked("evaluation_minutes", here=None),
    params:
        run=lambda w: PLAN.cell(**w).key,
        protocols=" ".join(f"--protocol {p.name}" for p in ON_SCORES),
        code=lambda w: evaluation_version(PLAN.cell(**w), ON_SCORES),
    shell:
        "capsbench evaluate {STUDY_FILE:q} {params.run} {params.protocols} --log {log}"


if ON_NETWORKS:

    rule measure:
        input:
            model=f"{STUDY}/runs/{RUN}/model.pt",
            # of the runs that a protocol takes beside the one that it measures
            others=lambda w: [
                f"{STUDY}/runs/{key}/model.pt"
                for key in PLAN.taken_beside(
                    PLAN.cell(w.experiment, w.variant, w.seed),
                    ON_NETWORKS[w.experiment, w.protocol],
                )
            ],
        output:
            f"{STUDY}/runs/{RUN}/evaluations/{{protocol}}.json",
        log:
            f"{STUDY}/logs/evaluate/{RUN}/{{protocol}}.log",
        wildcard_constraints:
            protocol="|".join({name for _, name in ON_NETWORKS}),
        threads: lambda w: workflow.cores if alone(w) and not on_cluster() else THREADS
        resources:
            gpu=gpus,
            mem_mb=asked("mem_mb", here=0),
            runtime=asked("evaluation_minutes", here=None),
            slurm_extra=lambda w: "--exclusive" if alone(w) and on_cluster() else None,
        params:
            run=lambda w: PLAN.cell(w.experiment, w.variant, w.seed).key,
            code=lambda w: evaluation_version(
                PLAN.cell(w.experiment, w.variant, w.seed),
                [ON_NETWORKS[w.experiment, w.protocol]],
            ),
        shell:
            "capsbench evaluate {STUDY_FILE:q} {params.run} --protocol {wildcards.protocol} --log {log}"
