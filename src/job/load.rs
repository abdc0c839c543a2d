//! `[load]`: the arrival of requests, their number, and the requirements for a reply.

use std::time::Duration;

use toml::de::DeValue;

use super::positive;
use crate::document::{DocumentError, FromToml, Section};
use crate::load::{ArrivalPattern, LoadPlan, RequestApi};
use crate::metrics::{PrecisionTarget, RunPart, Slo, SloError};
use crate::stats::f64_to_u32;
use crate::workload::Workload;

/// The load that a trial puts on the server.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadJob {
    pub arrival: ArrivalPattern,
    /// The largest number of requests in flight. Always set in a closed loop.
    pub concurrency: Option<u32>,
    /// The number of requests in the measurement window. `requests` or `duration` is set, or both, unless a trace
    /// determines the number.
    pub requests: Option<u32>,
    /// The length of the measurement window.
    pub duration: Option<Duration>,
    /// Requests before the measurement window.
    pub warmup: u32,
    /// The time limit of one request.
    pub request_timeout: Duration,
    /// The largest share of failed requests. Above it the trial is a failure.
    pub max_error_rate: f64,
    /// Whether a reply may end before it has the requested number of tokens.
    pub allow_eos: bool,
    pub api: RequestApi,
    /// The part of the run that is measured.
    pub window: RunPart,
    /// The precision of the objective at which the window may end: half the width of its 95 % confidence interval, as a
    /// share of its value.
    pub target_precision: Option<f64>,
    /// The limits that a request must keep to count for the goodput.
    pub goodput: Vec<Slo>,
    /// Whether a trial of the search ends as soon as it cannot become the best. Only a load that is measured in its
    /// steady part races, because the begin of a whole load has other values than all of it.
    pub race: bool,
}

impl LoadJob {
    /// Creates a closed loop with defaults for the rest.
    #[must_use]
    pub fn closed(concurrency: u32, requests: u32) -> Self {
        Self {
            arrival: ArrivalPattern::Closed,
            concurrency: Some(concurrency),
            requests: Some(requests),
            duration: None,
            warmup: concurrency,
            request_timeout: Duration::from_mins(1),
            max_error_rate: 0.05,
            allow_eos: false,
            api: RequestApi::Completions,
            window: RunPart::Whole,
            target_precision: None,
            goodput: Vec::new(),
            race: false,
        }
    }

    /// Returns the load generator's plan. `seed` is that of the arrivals.
    #[must_use]
    pub fn plan(&self, seed: u64) -> LoadPlan {
        LoadPlan {
            arrival: self.arrival.clone(),
            seed,
            concurrency: self.concurrency.map(|concurrency| concurrency as usize),
            requests: self.requests.map(u64::from),
            duration: self.duration,
            warmup: u64::from(self.warmup),
            request_timeout: self.request_timeout,
            allow_eos: self.allow_eos,
            ..LoadPlan::closed(1, 1)
        }
    }

    /// Sets the number of requests if a trace is replayed as a whole.
    ///
    /// # Errors
    /// If a trace is to be replayed and the workload has no time stamps.
    pub fn set_trace_length(&mut self, workload: &dyn Workload) -> Result<(), &'static str> {
        if matches!(self.arrival, ArrivalPattern::Trace { .. }) {
            if workload.due(0).is_none() {
                return Err("has no time stamps to replay");
            }
            if self.requests.is_none() && self.duration.is_none() {
                self.requests = workload.len().and_then(|len| u32::try_from(len).ok());
            }
        }
        Ok(())
    }

    /// Returns the number of requests, including the warm-up. A rate with a duration gives the expected number. `None`
    /// if neither a number nor a rate determines it.
    #[must_use]
    pub fn total(&self) -> Option<u32> {
        let by_time = || match (&self.arrival, self.duration) {
            (ArrivalPattern::Rate { per_s, .. }, Some(duration)) => {
                Some(f64_to_u32((per_s * duration.as_secs_f64()).ceil()))
            }
            _ => None,
        };
        let requests = match (self.requests, by_time()) {
            (Some(requests), Some(by_time)) => Some(requests.min(by_time)),
            (requests, by_time) => requests.or(by_time),
        };
        requests.map(|requests| requests.saturating_add(self.warmup))
    }

    pub(super) fn read(section: &Section<'_>) -> Result<Self, DocumentError> {
        Self::read_under(section, None)
    }

    /// Reads the load of one of several workloads. The keys of `own` replace those of `[load]`. It never races.
    pub(super) fn read_part(section: &Section<'_>, own: Option<&Section<'_>>) -> Result<Self, DocumentError> {
        if section.optional::<bool>("race")? == Some(true) {
            let hint = "remove it: a launch with several workloads measures each of them to its end".to_owned();
            return Err(section.error("race", "is not available with several workloads", Some(hint)));
        }
        Ok(Self { race: false, ..Self::read_under(section, own)? })
    }

    fn read_under(section: &Section<'_>, own: Option<&Section<'_>>) -> Result<Self, DocumentError> {
        let arrival = read_arrival(section, own)?;
        let closed = arrival == ArrivalPattern::Closed;
        let concurrency = count(table_of::<u32>(section, own, "concurrency")?, "concurrency", closed)?;
        let max_error_rate = section.optional_or("max_error_rate", 0.05)?;
        if !(0.0..=1.0).contains(&max_error_rate) {
            return Err(section.error("max_error_rate", format!("{max_error_rate} is not between 0 and 1"), None));
        }
        let request_timeout = section.optional_or("request_timeout", Duration::from_mins(1))?;
        if request_timeout.is_zero() {
            return Err(section.error("request_timeout", "must be longer than 0", None));
        }
        let table = table_of::<Duration>(section, own, "duration")?;
        let duration: Option<Duration> = table.optional("duration")?;
        if duration.is_some_and(|duration| duration.is_zero()) {
            return Err(table.error("duration", "must be longer than 0", None));
        }
        // A trace determines the number of requests itself.
        let needed = duration.is_none() && !matches!(arrival, ArrivalPattern::Trace { .. });
        let requests = count(table_of::<u32>(section, own, "requests")?, "requests", needed)?;
        // The load generator warms up in a closed loop, by default with `concurrency` requests. An open load has no
        // warm-up by default, because it may lack a concurrency.
        let warmup = section.optional("warmup")?.unwrap_or(if closed { concurrency.unwrap_or(0) } else { 0 });
        let api = match section.optional_or("api", "completions".to_owned())?.as_str() {
            "completions" => RequestApi::Completions,
            "chat" => RequestApi::Chat,
            other => {
                let problem = format!("{other:?} is not an interface; there are \"completions\" and \"chat\"");
                return Err(section.error("api", problem, None));
            }
        };
        let allow_eos = section.optional_or("allow_eos", false)?;
        let until: Option<String> = section.optional("until")?;
        let until = until.map(|share| PrecisionTarget::share(&share)).transpose();
        let until = until.map_err(|error| section.error("until", error.to_string(), None))?;
        let race: Option<bool> = section.optional("race")?;
        let window = match section.optional::<String>("window")?.as_deref() {
            Some("whole") if race == Some(true) => {
                let problem = "cannot be \"whole\" with load.race: the begin of a load has other values than all of it";
                let hint = "remove load.window, or set it to \"steady\"".to_owned();
                return Err(section.error("window", problem, Some(hint)));
            }
            Some("whole") => RunPart::Whole,
            // A load that ends by a number of requests or with its trace is measured as a whole. One that ends by time,
            // at a precision or by a race is cut off anywhere, so only its steady part is measured.
            None if until.is_none() && race != Some(true) && (requests.is_some() || duration.is_none()) => {
                RunPart::Whole
            }
            Some("steady") | None => RunPart::Steady,
            Some(other) => {
                let problem = format!("{other:?} is not a measurement window; there are \"whole\" and \"steady\"");
                return Err(section.error("window", problem, None));
            }
        };
        let goodput: Vec<String> = section.optional_or("goodput", Vec::new())?;
        let goodput = goodput.iter().map(|limit| limit.parse()).collect::<Result<_, _>>();
        let goodput = goodput.map_err(|error: SloError| section.error("goodput", error.to_string(), None))?;
        Ok(Self {
            arrival,
            concurrency,
            requests,
            duration,
            warmup,
            request_timeout,
            max_error_rate,
            allow_eos,
            api,
            window,
            target_precision: until,
            goodput,
            race: race.unwrap_or(true) && window == RunPart::Steady,
        })
    }
}

/// The number of sessions that [`start_after`] assumes for a load without a number of requests.
const UNBOUNDED_SESSIONS: u64 = 1 << 40;

/// Sets the first session of a load behind the `earlier` ones, whose prompts are in the prefix cache of the same
/// server. Returns the next index after the load's own sessions, as the `earlier` of the next load. A trace begins with
/// its first row, so that lengths and time stamps correspond.
pub fn start_after(plan: &mut LoadPlan, workload: &dyn Workload, earlier: u64) -> u64 {
    let rows = workload.len().filter(|_| matches!(plan.arrival, ArrivalPattern::Trace { .. }));
    plan.first = rows.map_or(earlier, |rows| earlier.next_multiple_of(rows));
    // The warm-up sends altered copies of recorded prompts, so that the prompts themselves stay unused.
    let warmup = if recorded_prompts(workload).is_some() { 0 } else { plan.warmup };
    plan.first + plan.requests.unwrap_or(UNBOUNDED_SESSIONS) + warmup
}

/// Returns the number of prompts if they repeat. A trace of lengths generates other tokens when it starts over.
fn recorded_prompts(workload: &dyn Workload) -> Option<u64> {
    workload.len().filter(|len| workload.session(0) == workload.session(*len))
}

/// Returns the number of prompts if a load reaches beyond the last one and repeats the first ones.
#[must_use]
pub fn repeated_prompts(plan: &LoadPlan, workload: &dyn Workload) -> Option<u64> {
    let asked = plan.first.saturating_add(plan.requests.unwrap_or(UNBOUNDED_SESSIONS));
    recorded_prompts(workload).filter(|prompts| asked > *prompts)
}

/// Returns a warning for users if the measurement window repeats prompts.
#[must_use]
pub fn repetition_warning(plan: &LoadPlan, workload: &dyn Workload) -> Option<String> {
    let prompts = repeated_prompts(plan, workload)?;
    let asked = match (plan.first, plan.requests) {
        (0, Some(requests)) => format!("and {requests} requests are measured"),
        (_, Some(requests)) => format!("and earlier runs leave too few for {requests} requests"),
        (_, None) => "and the number of requests is unlimited".to_owned(),
    };
    Some(format!(
        "there are only {prompts} prompts, {asked}: some repeat, and the server's prefix cache may contain them"
    ))
}

/// Returns the table that determines a key: that of a workload if it has the key, else `[load]`.
fn table_of<'s, 'd, T: FromToml>(
    load: &'s Section<'d>,
    own: Option<&'s Section<'d>>,
    key: &str,
) -> Result<&'s Section<'d>, DocumentError> {
    let Some(own) = own else { return Ok(load) };
    // Both are asked, because a key of `[load]` is known even if every workload replaces it.
    let _ = load.optional::<T>(key)?;
    Ok(if own.optional::<T>(key)?.is_some() { own } else { load })
}

/// Reads a number of at least 1. It may be absent unless `needed`.
fn count(section: &Section<'_>, key: &str, needed: bool) -> Result<Option<u32>, DocumentError> {
    if needed {
        return positive(section, key).map(Some);
    }
    match section.optional(key)? {
        Some(0) => Err(section.error(key, "must be at least 1", None)),
        number => Ok(number),
    }
}

/// Sessions per second, or `"inf"`.
struct Rate(f64);

impl FromToml for Rate {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match String::from_toml(value).as_deref() {
            Ok("inf") => Ok(Self(f64::INFINITY)),
            Ok(text) => Err(format!("{text:?} is neither a number nor \"inf\"")),
            Err(_) => f64::from_toml(value).map(Self),
        }
    }

    fn kind() -> String {
        "a number or `\"inf\"`".to_owned()
    }
}

fn read_arrival(section: &Section<'_>, own: Option<&Section<'_>>) -> Result<ArrivalPattern, DocumentError> {
    let table = table_of::<Rate>(section, own, "rate")?;
    let rate = table.optional("rate")?.map(|Rate(rate)| rate);
    let ramp = section.optional_section("ramp", |ramp| {
        let from_per_s = positive_number(ramp, "from", ramp.required("from")?)?;
        let to_per_s = positive_number(ramp, "to", ramp.required("to")?)?;
        let over: Duration = ramp.required("over")?;
        if over.is_zero() {
            return Err(ramp.error("over", "must be longer than 0", None));
        }
        Ok((from_per_s, to_per_s, over))
    })?;
    let positive = |key: &str| section.optional(key)?.map(|number| positive_number(section, key, number)).transpose();
    let factor = positive("trace_factor")?;
    let given: Vec<_> = [("rate", rate.is_some()), ("ramp", ramp.is_some()), ("trace_factor", factor.is_some())]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
        .collect();
    if let [first, second, ..] = given[..] {
        let hint = "set only one of rate, ramp and trace_factor".to_owned();
        return Err(section.error(second, format!("cannot be combined with load.{first}"), Some(hint)));
    }
    let shape = positive("burstiness")?;
    let burstiness = shape.unwrap_or(1.0);
    let arrival = match (rate, ramp, factor) {
        (Some(per_s), ..) if per_s.is_infinite() && per_s > 0.0 => ArrivalPattern::AtOnce,
        (Some(per_s), ..) if per_s > 0.0 => ArrivalPattern::Rate { per_s, burstiness },
        (Some(per_s), ..) => return Err(table.error("rate", format!("{per_s} is not above 0"), None)),
        (None, Some((from_per_s, to_per_s, over)), _) => {
            ArrivalPattern::Ramp { from_per_s, to_per_s, over, burstiness }
        }
        (None, None, Some(factor)) => ArrivalPattern::Trace { factor },
        (None, None, None) => ArrivalPattern::Closed,
    };
    if shape.is_some() && !matches!(arrival, ArrivalPattern::Rate { .. } | ArrivalPattern::Ramp { .. }) {
        let problem = "applies to a finite rate or a ramp, and neither is set".to_owned();
        return Err(section.error(
            "burstiness",
            problem,
            Some("set load.rate to a number, or remove load.burstiness".to_owned()),
        ));
    }
    Ok(arrival)
}

/// Returns a number of this key that is above 0. `burstiness` may be infinite.
fn positive_number(section: &Section<'_>, key: &str, number: f64) -> Result<f64, DocumentError> {
    if number.is_nan() || number <= 0.0 || (number.is_infinite() && key != "burstiness") {
        return Err(section.error(key, format!("{number} is not a number above 0"), None));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use crate::workload::{Prompt, UserSession};

    fn read(text: &str) -> Result<LoadJob, DocumentError> {
        Document::from_text("study.toml", format!("[load]\n{text}")).parse(|root| root.section("load", LoadJob::read))
    }

    #[test]
    fn the_keys_of_the_first_studies_keep_their_meaning() {
        assert_eq!(read("concurrency = 8\nrequests = 20").unwrap(), LoadJob::closed(8, 20));
        let plan = read("concurrency = 8\nrequests = 20").unwrap().plan(5);
        let expected =
            LoadPlan { seed: 5, warmup: 8, request_timeout: Duration::from_mins(1), ..LoadPlan::closed(8, 20) };
        assert_eq!(plan, expected);
    }

    #[test]
    fn every_arrival_pattern_can_be_configured() {
        let arrival = |text: &str| read(text).unwrap().arrival;
        assert_eq!(arrival("rate = 'inf'\nrequests = 3"), ArrivalPattern::AtOnce);
        assert_eq!(arrival("rate = inf\nrequests = 3"), ArrivalPattern::AtOnce);
        assert_eq!(arrival("rate = 4\nduration = '1m'"), ArrivalPattern::Rate { per_s: 4.0, burstiness: 1.0 });
        assert_eq!(
            arrival("rate = 0.5\nburstiness = inf\nrequests = 3"),
            ArrivalPattern::Rate { per_s: 0.5, burstiness: f64::INFINITY }
        );
        assert_eq!(
            arrival("ramp = { from = 1, to = 9, over = '2m' }\nrequests = 3"),
            ArrivalPattern::Ramp { from_per_s: 1.0, to_per_s: 9.0, over: Duration::from_mins(2), burstiness: 1.0 }
        );
        assert_eq!(arrival("trace_factor = 0.5"), ArrivalPattern::Trace { factor: 0.5 });
        let open = read("rate = 4\nduration = '1m'\napi = 'chat'\nallow_eos = true").unwrap();
        assert_eq!((open.warmup, open.concurrency, open.api, open.allow_eos), (0, None, RequestApi::Chat, true));
        assert_eq!(open.total(), Some(240));
    }

    #[test]
    fn a_run_ends_at_a_precision_and_counts_good_requests() {
        let precise = read("concurrency = 8\nrequests = 20\nuntil = '5%'\ngoodput = ['ttft:200', 'tpot:50']").unwrap();
        assert_eq!(precise.target_precision, Some(0.05));
        assert_eq!(precise.goodput.iter().map(ToString::to_string).collect::<Vec<_>>(), ["ttft:200", "tpot:50"]);
        let plain = read("concurrency = 8\nrequests = 20").unwrap();
        assert_eq!((plain.target_precision, plain.goodput.len(), plain.window), (None, 0, RunPart::Whole));
    }

    #[test]
    fn a_load_that_ends_by_time_or_precision_is_measured_in_its_steady_state_by_default() {
        let window = |text: &str| read(text).unwrap().window;
        assert_eq!(window("concurrency = 8\nduration = '1m'\nrequests = 9"), RunPart::Whole);
        assert_eq!(window("rate = 8\nduration = '1m'"), RunPart::Steady);
        assert_eq!(window("trace_factor = 1"), RunPart::Whole);
        assert_eq!(window("trace_factor = 1\nduration = '1m'"), RunPart::Steady);
        assert_eq!(window("concurrency = 8\nrequests = 20\nuntil = '5%'"), RunPart::Steady);
        assert_eq!(window("concurrency = 8\nrequests = 20\nuntil = '5%'\nwindow = 'whole'"), RunPart::Whole);
        assert_eq!(window("concurrency = 8\nrequests = 20\nwindow = 'steady'"), RunPart::Steady);
    }

    /// A file of seven prompts, or a trace of seven rows.
    #[derive(Debug)]
    struct Seven {
        trace: bool,
    }

    impl Workload for Seven {
        fn session(&self, index: u64) -> UserSession {
            UserSession::single(Prompt::Text(if self.trace { index } else { index % 7 }.to_string()), 1)
        }

        fn longest(&self) -> u64 {
            1
        }

        fn len(&self) -> Option<u64> {
            Some(7)
        }
    }

    #[test]
    fn loads_on_one_server_send_different_sessions_and_report_repeated_prompts() {
        let (file, trace) = (Seven { trace: false }, Seven { trace: true });
        let mut plan = LoadPlan { warmup: 1, ..LoadPlan::closed(1, 2) };
        assert_eq!((start_after(&mut plan, &trace, 0), start_after(&mut plan, &file, 0)), (3, 2));
        assert_eq!((plan.first, repeated_prompts(&plan, &file)), (0, None));
        assert_eq!(start_after(&mut plan, &file, 5), 7);
        assert_eq!((plan.first, repeated_prompts(&plan, &file), repetition_warning(&plan, &file)), (5, None, None));
        assert_eq!(start_after(&mut plan, &file, 6), 8);
        assert_eq!((repeated_prompts(&plan, &file), repeated_prompts(&plan, &trace)), (Some(7), None));
        let told = repetition_warning(&LoadPlan { first: 0, requests: Some(9), ..plan.clone() }, &file).unwrap();
        assert!(told.starts_with("there are only 7 prompts, and 9 requests are measured: "), "{told}");
        let mut replay = LoadPlan { arrival: ArrivalPattern::Trace { factor: 1.0 }, requests: None, ..plan };
        assert!(start_after(&mut replay, &trace, 3) > 1 << 40);
        assert_eq!(replay.first, 7, "a row has its own time stamp");
    }

    #[test]
    fn a_load_that_is_measured_in_its_steady_part_races_by_default() {
        let race = |text: &str| read(text).map(|load| (load.race, load.window));
        assert_eq!(race("rate = 8\nduration = '1m'").unwrap(), (true, RunPart::Steady));
        assert_eq!(race("rate = 8\nduration = '1m'\nrace = false").unwrap(), (false, RunPart::Steady));
        assert_eq!(race("concurrency = 8\nrequests = 20").unwrap(), (false, RunPart::Whole));
        assert_eq!(race("concurrency = 8\nrequests = 20\nrace = true").unwrap(), (true, RunPart::Steady));
        let error = race("concurrency = 8\nrequests = 20\nrace = true\nwindow = 'whole'").unwrap_err().to_string();
        assert!(error.starts_with("study.toml:5: load.window: cannot be \"whole\" with load.race"), "{error}");
    }

    #[test]
    fn an_invalid_load_is_reported_with_its_line() {
        for (text, problem) in [
            ("requests = 3", "study.toml:1: load.concurrency: is missing"),
            ("concurrency = 3", "study.toml:1: load.requests: is missing"),
            ("concurrency = 0\nrequests = 3", "study.toml:2: load.concurrency: must be at least 1"),
            ("rate = 'fast'\nrequests = 3", "study.toml:2: load.rate: \"fast\" is neither a number nor \"inf\""),
            ("rate = -1\nrequests = 3", "study.toml:2: load.rate: -1 is not above 0"),
            ("rate = 1\ntrace_factor = 1", "study.toml:3: load.trace_factor: cannot be combined with load.rate"),
            (
                "concurrency = 3\nrequests = 3\nburstiness = 2",
                "study.toml:4: load.burstiness: applies to a finite rate",
            ),
            ("ramp = { from = 1, over = '1m' }\nrequests = 3", "study.toml:2: load.ramp.to: is missing"),
            ("ramp = { from = 1, to = 0, over = '1m' }", "study.toml:2: load.ramp.to: 0 is not a number above 0"),
            ("rate = 1\nrequests = 3\napi = 'grpc'", "study.toml:4: load.api: \"grpc\" is not an interface"),
            ("rate = 1\nrequests = 3\nuntil = '0%'", "study.toml:4: load.until: "),
            ("rate = 1\nrequests = 3\nuntil = 'soon'", "study.toml:4: load.until: "),
            ("rate = 1\nrequests = 3\ngoodput = ['itl:3']", "study.toml:4: load.goodput: "),
            ("rate = 1\nrequests = 3\ngoodput = ['ttft:-3']", "study.toml:4: load.goodput: "),
            (
                "rate = 1\nrequests = 3\nwindow = 'all'",
                "study.toml:4: load.window: \"all\" is not a measurement window",
            ),
            ("rate = 1\nrequests = 3\nwarm_up = 3", "study.toml:4: load.warm_up: unknown key"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
