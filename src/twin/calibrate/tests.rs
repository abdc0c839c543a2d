//! A known machine, recovered from the observations of its clients.

use std::time::Duration;

use super::*;
use crate::config::ResolvedConfig;
use crate::twin::{DevicePreset, Tokens, test_model};

fn settings(max_num_seqs: u32) -> Settings {
    Settings {
        resolved: ResolvedConfig {
            max_num_seqs: max_num_seqs.into(),
            max_model_len: 2048,
            max_num_batched_tokens: 1024,
            block_size: 16,
            ..crate::twin::tests::settings().resolved
        },
        num_blocks: 4000,
        ..crate::twin::tests::settings()
    }
}

fn prior(settings: &Settings) -> StepTime {
    StepTime::new(&test_model(), DevicePreset::find("l4").unwrap(), settings).unwrap()
}

/// Returns a load on a machine that differs from the prior by these factors.
fn run(truth: Factors, max_num_seqs: u32, requests: u32) -> ObservedRun {
    let settings = settings(max_num_seqs);
    let request = |number| ObservedRequest {
        at: Duration::from_millis(u64::from(number) * 250),
        prompt: Tokens::Count(100 + 37 * number % 700),
        output_len: 20 + 13 * number % 50,
        times: None,
    };
    let requests = (0..requests).map(request).collect();
    let mut run = ObservedRun {
        prior: prior(&settings),
        settings,
        replicas: 1,
        earlier_requests: Vec::new(),
        load: ReplayedLoad::Open,
        requests,
        steps: None,
    };
    observe(&mut run, truth);
    run
}

/// Records the observations of the load on such a machine.
fn observe(run: &mut ObservedRun, truth: Factors) {
    let (times, steps) = replay(run, &run.prior.clone().scaled(truth)).unwrap();
    for (request, times) in run.requests.iter_mut().zip(times) {
        request.times = Some(times);
    }
    run.steps = Some(steps);
}

fn truth() -> Factors {
    let mut truth = Factors::ONE;
    truth[TermFactor::Weights] = 1.15;
    truth[TermFactor::Compute] = 0.8;
    truth[TermFactor::Attention] = 1.3;
    truth
}

fn mean_latency(run: &ObservedRun, factors: Factors) -> f64 {
    let (times, _) = replay(run, &run.prior.clone().scaled(factors)).unwrap();
    let sum: Duration = times.iter().map(|times| times.latency).sum();
    sum.as_secs_f64() / f64::from(u32::try_from(run.requests.len()).unwrap())
}

#[test]
fn one_run_is_enough_to_predict_another_configuration() {
    let seen = run(truth(), 32, 40);
    let calibration = calibrate(std::slice::from_ref(&seen)).unwrap();
    assert!(calibration.loss < 0.05 * calibration.loss_before, "{calibration:?}");
    let other = run(truth(), 8, 40);
    let (real, before, after) =
        (mean_latency(&other, truth()), mean_latency(&other, Factors::ONE), mean_latency(&other, calibration.factors));
    assert!((before / real - 1.0).abs() > 0.05, "{before} {real}");
    assert!((after / real - 1.0).abs() < 0.02, "{after} {real}");
}

#[test]
fn step_counts_of_a_closed_load_separate_host_from_front_end() {
    let mut truth = Factors::ONE;
    (truth[TermFactor::Host], truth[TermFactor::Frontend]) = (2.0, 3.0);
    let mut seen = run(Factors::ONE, 32, 60);
    seen.load = ReplayedLoad::Closed { users: 16 };
    // On a device with short steps.
    seen.prior = StepTime::new(&test_model(), DevicePreset::find("b200").unwrap(), &seen.settings).unwrap();
    observe(&mut seen, truth);
    let calibration = calibrate(&[seen]).unwrap();
    for factor in [TermFactor::Host, TermFactor::Frontend] {
        assert!((calibration.factors[factor] / truth[factor] - 1.0).abs() < 0.2, "{calibration:?}");
    }
}

#[test]
fn factors_that_clients_cannot_measure_keep_their_prior() {
    // Every step reads the weights. The host's millisecond is hidden beside a step, the front end's beside seconds.
    let calibration = calibrate(&[run(truth(), 32, 40)]).unwrap();
    let narrower = |factor| calibration.spread[factor] / prior_spread(factor);
    assert!(narrower(TermFactor::Weights) < 0.3, "{calibration:?}");
    assert!(narrower(TermFactor::Frontend) > 0.5 && narrower(TermFactor::Launch) > 0.3, "{calibration:?}");
    assert!((calibration.factors[TermFactor::Weights] / 1.15 - 1.0).abs() < 0.05, "{calibration:?}");
}

#[test]
fn draws_vary_by_the_spread_and_repeat() {
    let none = Calibration::none();
    assert_eq!(none.draw(3), none.draw(3));
    let logs: Vec<_> = (0..2000).map(|number| none.draw(number)[TermFactor::Weights].ln()).collect();
    let variance = logs.iter().map(|log| log * log).sum::<f64>() / 2000.0;
    assert!((variance.sqrt() / 0.1 - 1.0).abs() < 0.1, "{variance}");
    let mean = (0..2000).map(|number| none.draw(number)[TermFactor::Host]).sum::<f64>() / 2000.0;
    assert!((mean - 1.0).abs() < 0.06, "{mean}");
    let calibration = calibrate(&[run(truth(), 32, 40)]).unwrap();
    let wide = |calibration: &Calibration| {
        let logs = (0..200).map(|number| {
            (calibration.draw(number)[TermFactor::Compute] / calibration.factors[TermFactor::Compute]).ln()
        });
        (logs.map(|log| log * log).sum::<f64>() / 200.0).sqrt()
    };
    assert!(wide(&calibration) < wide(&none));
}

#[test]
fn a_handful_of_requests_is_not_enough() {
    let mut few = run(truth(), 32, 20);
    for request in &mut few.requests[..13] {
        request.times = None;
    }
    assert_eq!(calibrate(&[few]), Err(CalibrateError::TooFew { observed: 7, least: 8 }));
}

#[test]
fn a_run_that_the_settings_cannot_serve_is_named() {
    let mut broken = run(truth(), 32, 10);
    broken.settings.resolved.max_model_len = 200;
    let error = calibrate(&[run(truth(), 32, 10), broken]).unwrap_err().to_string();
    assert!(error.starts_with("run 1: request 3 of the load "), "{error}");
}
