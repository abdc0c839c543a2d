//! `bench`: the load generator alone, against any server of OpenAI's interface.

mod arguments;
mod drive;
mod measure;
mod output_file;
mod plan;
mod progress;
mod record;
mod target;
mod workload;

use std::sync::Arc;

use clap::Args;
use tokio::sync::watch;

use super::failure::{CommandFailure, INTERRUPTED, NO_VALID_MEASUREMENT, USAGE};
use super::output::print;
use super::{GlobalOptions, signal};
use crate::job::{BenchProfile, BenchTest, ProfileRun, repetition_warning, start_after};
use crate::load::{LoadPlan, LoadTarget, RequestApi, RunEnd};
use crate::metrics::{PrecisionTarget, RunPart, Slo};
use crate::report::{BENCH_FORMATS, BenchResult, BenchRuns, benchmark_json};
use crate::workload::{Workload, WorkloadSpec};
use arguments::{JudgeArgs, LoadArgs, OutputArgs, ServerArgs, WorkArgs};
use output_file::OutputFile;
use progress::BenchDisplay;
use target::ServedModel;

/// Asks a running server and reports throughput and latencies as `vllm bench serve` does.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Results go to standard output, progress to standard error. Exit codes: 0 the sample is valid, 2 wrong arguments, 3 a \
data file is invalid, 5 no server answers, 6 the sample is void (its numbers are written all the same), \
130 interrupted (the numbers so far are written).")]
pub(super) struct BenchCommand {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    judge: JudgeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// One requested run.
struct RequestedRun {
    /// Name in tables.
    name: String,
    target: LoadTarget,
    workload: Arc<dyn Workload>,
    plan: LoadPlan,
    /// Whether no two of its prompts share a prefix. Hits in the server's prefix cache then come from earlier runs.
    has_unique_prompts: bool,
    judge: RunCriteria,
    test: BenchTest,
}

/// The criteria that end a run and that decide whether its numbers are valid.
#[derive(Clone, Debug)]
struct RunCriteria {
    /// Limits of a good request.
    goodput: Vec<Slo>,
    /// Precision at which the run ends.
    until: Option<PrecisionTarget>,
    window: RunPart,
    /// Largest share of failed requests, 0 to 1, in a valid run.
    max_error_rate: f64,
}

impl BenchCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let format = BENCH_FORMATS.iter().find(|format| format.name == self.output.format);
        let Some(format) = format else { return Err(CommandFailure::new(USAGE, "unknown format")) };
        let mut result = self.output.output.as_deref().map(|path| OutputFile::new(path, "--output")).transpose()?;
        let mut records = self.output.records.as_deref().map(|path| OutputFile::new(path, "--records")).transpose()?;

        let judge = self.validity_criteria()?;
        let display = BenchDisplay::new(global);
        // The first signal ends the load. The numbers so far are written.
        let mut stop = signal::watch_signals(false, |stop| *stop = true)?;
        let (target, served) = tokio::select! {
            biased;
            found = target::find(&self.server) => found?,
            () = stopped(&mut stop) => return Err(interrupted()),
        };
        let tokenizer = self.work.tokenizer(&served);
        let runs = self.requested_runs(&target, &served, &judge)?;
        for asked in &runs {
            for left_out in asked.workload.left_out() {
                display.note(&format!("{}: left out {} {}", asked.name, left_out.rows, left_out.reason));
            }
            if let Some(warning) = repetition_warning(&asked.plan, &*asked.workload) {
                display.note(&format!("{}: {warning}", asked.name));
            }
        }
        let (mut ended, mut trouble) = (Vec::new(), None);
        let of = runs.len();
        for (place, asked) in runs.into_iter().enumerate() {
            let name = asked.name.clone();
            if of > 1 {
                display.note(&format!("run {} of {of}: {name}", place + 1));
            }
            let (benchmark, run) = match self.measure(asked, tokenizer.as_deref(), &display, &stop).await {
                Ok(measured) => measured,
                Err(failure) if ended.is_empty() => return Err(failure),
                Err(failure) => {
                    // The results of the earlier runs are kept.
                    trouble = Some(failure);
                    break;
                }
            };
            if let Some(records) = &mut records {
                for record in &run.records {
                    records.write_line(&record::line(&name, record).to_string())?;
                }
            }
            ended.push(benchmark);
            if run.end == RunEnd::Stopped {
                break;
            }
        }
        display.finish();
        let runs = match ended.as_slice() {
            [one] if self.load.profile.is_none() => BenchRuns::One(one),
            all => BenchRuns::Profile(all),
        };
        if let Some(mut output) = result.take() {
            let json = match runs {
                BenchRuns::One(run) => benchmark_json(run),
                BenchRuns::Profile(all) => all.iter().map(benchmark_json).collect(),
            };
            output.write_line(&format!("{json:#}"))?;
            output.commit()?;
        }
        if let Some(output) = records.take() {
            output.commit()?;
        }
        print(&(format.write)(runs))?;
        trouble.map_or_else(|| verdict(&ended), Err)
    }
}

impl BenchCommand {
    /// Returns the runs, in order.
    fn requested_runs(
        &self,
        target: &LoadTarget,
        served: &ServedModel,
        judge: &RunCriteria,
    ) -> Result<Vec<RequestedRun>, CommandFailure> {
        if let Some(profile) = &self.load.profile {
            return self.profile(profile, target, served, judge);
        }
        let spec = self.work.spec(self.load.num_requests.map(|n| n.saturating_add(self.load.warmup.unwrap_or(0))))?;
        let surroundings = self.work.surroundings(target, served, self.load.seed);
        let workload = spec.build(&surroundings).map_err(|error| workload::failure(&error))?;
        let traits = plan::RunTraits {
            replays_trace: matches!(spec, WorkloadSpec::Trace { .. }),
            ends_when_precise: self.judge.until.is_some(),
        };
        let plan = plan::build_plan(&self.load, &*workload, traits)?;
        Ok(vec![RequestedRun {
            name: measure::name(spec.kind(), &plan),
            target: target.clone(),
            workload,
            plan,
            has_unique_prompts: spec.has_unique_prompts(),
            judge: judge.clone(),
            test: BenchTest::default(),
        }])
    }

    /// Returns the runs of a profile. All workloads are built before the first run, so that a missing file is found at
    /// once.
    fn profile(
        &self,
        profile: &str,
        target: &LoadTarget,
        served: &ServedModel,
        judge: &RunCriteria,
    ) -> Result<Vec<RequestedRun>, CommandFailure> {
        if let Some(flag) = self.work.described() {
            return Err(CommandFailure::new(
                USAGE,
                format!("{flag} cannot be used with --profile, which defines the workload"),
            ));
        }
        let mut profile = BenchProfile::read(profile)?;
        if let Some(file) = &self.work.dataset
            && !profile.set_dataset(file)
        {
            return Err(CommandFailure::new(USAGE, format!("no run of profile {} needs --dataset", profile.name)));
        }
        // The runs take their prompts one after the other from one set, so that no run repeats the prompts of another.
        // The set must be large enough for all of them.
        let warmup = |run: &ProfileRun| self.load.warmup.unwrap_or(u64::from(run.load.warmup));
        let prompts =
            profile.runs.iter().map(|run| u64::from(run.load.requests.unwrap_or(0)) + warmup(run)).sum::<u64>();
        for run in &mut profile.runs {
            run.spec.set_prompts(u32::try_from(prompts).unwrap_or(u32::MAX));
        }
        let (mut built, mut asked, mut runs): (Vec<BuiltWorkload>, _, _) = (Vec::new(), 0, Vec::new());
        for run in &profile.runs {
            let api = self.server.api.map_or(run.load.api, RequestApi::from);
            let target = LoadTarget { api, ..target.clone() };
            let known = built.iter().find(|built| built.api == api && built.spec == run.spec);
            let workload = if let Some(known) = known {
                Arc::clone(&known.workload)
            } else {
                let surroundings = self.work.surroundings(&target, served, self.load.seed);
                let workload = run.spec.build(&surroundings).map_err(|error| workload::failure(&error))?;
                built.push(BuiltWorkload { api, spec: run.spec.clone(), workload: Arc::clone(&workload) });
                workload
            };
            let own = run.load.plan(self.load.seed);
            let requests = own.requests.or_else(|| if own.duration.is_none() { workload.len() } else { None });
            let mut plan = LoadPlan {
                requests,
                warmup: warmup(run),
                request_timeout: self.load.request_timeout.unwrap_or(own.request_timeout),
                allow_eos: own.allow_eos || self.load.allow_eos,
                ..own
            };
            asked = start_after(&mut plan, &*workload, asked);
            runs.push(RequestedRun {
                name: format!("{}_{}", profile.name, run.name),
                target,
                workload,
                plan,
                has_unique_prompts: run.spec.has_unique_prompts(),
                judge: self.profile_criteria(&run.load, judge)?,
                test: run.test,
            });
        }
        Ok(runs)
    }
}

/// A workload that several runs of a profile share.
struct BuiltWorkload {
    api: RequestApi,
    spec: WorkloadSpec,
    workload: Arc<dyn Workload>,
}

/// Returns an error for the exit code if a run was interrupted or is not valid. The results were already written.
fn verdict(ended: &[BenchResult]) -> Result<(), CommandFailure> {
    if ended.iter().any(|run| run.end == INTERRUPTED_END) {
        return Err(interrupted());
    }
    let several = ended.len() > 1;
    let void: Vec<_> = ended
        .iter()
        .filter(|run| !run.is_valid())
        .map(|run| {
            let reasons = run.invalid.join("; ");
            if several { format!("{}: {reasons}", run.name) } else { reasons }
        })
        .collect();
    if void.is_empty() {
        return Ok(());
    }
    let failure = CommandFailure::new(NO_VALID_MEASUREMENT, format!("the sample is void: {}", void.join("; ")));
    // The quoted words are vLLM's. Without the model's files, the vocabulary size is a guess and may be too large.
    let unknown_tokens = void.iter().any(|reasons| reasons.contains("out of vocabulary"));
    Err(if unknown_tokens {
        failure.with_hint(
            "the prompts contain token ids outside of the model's vocabulary: give --vocab-size N or --tokenizer DIR",
        )
    } else {
        failure
    })
}

/// Value of `BenchResult::end` for a run that a signal ended.
const INTERRUPTED_END: &str = "interrupted";

fn interrupted() -> CommandFailure {
    CommandFailure::new(INTERRUPTED, "interrupted")
}

/// Waits for the first signal.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
