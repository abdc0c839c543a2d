//! `[objective]`: the metric to optimize and its constraints.

use super::{LoadJob, NamedWorkload, load_goal};
use crate::document::{DocumentError, Section, nearest};
use crate::metrics::PrecisionTarget;
use crate::objective::{Constraint, Goal, JointObjective, MetricLimit, Objective, WeightedWorkload, WorkloadAggregate};
use crate::trial::{Measurement, MetricDirection};

/// Reads the section. `load` is that of any workload, and `workloads` has all of them if there are several.
pub(super) fn read(
    section: &Section<'_>,
    load: &LoadJob,
    workloads: &[NamedWorkload],
) -> Result<Objective, DocumentError> {
    let (maximize, minimize) = (section.optional::<String>("maximize")?, section.optional::<String>("minimize")?);
    let (key, goal, metric) = match (maximize, minimize) {
        (Some(metric), None) => ("maximize", Goal::Maximize, metric),
        (None, Some(metric)) => ("minimize", Goal::Minimize, metric),
        (Some(_), Some(_)) => {
            return Err(section.error("minimize", "cannot be combined with maximize: keep one of them", None));
        }
        (None, None) => return Err(section.error("maximize", "is missing, and so is minimize: set one of them", None)),
    };
    check_metric(section, key, &metric, load)?;
    if load.target_precision.is_some()
        && let Err(error) = PrecisionTarget::parse(&metric, "1%")
    {
        let hint = error.hint().map(str::to_owned);
        return Err(section.error(key, format!("{error}, and load.until requires it"), hint));
    }
    let better = match Measurement::direction(&metric) {
        Some(MetricDirection::Maximize) => Goal::Maximize,
        _ => Goal::Minimize,
    };
    if goal != better {
        let (other, values) = if better == Goal::Maximize { ("maximize", "higher") } else { ("minimize", "lower") };
        let problem = format!("{values} values of {metric} are better");
        return Err(section.error(key, problem, Some(format!("did you mean `{other} = \"{metric}\"`?"))));
    }
    let constraints = section.sections("constraint", |constraint| read_constraint(constraint, load))?;
    let joint = read_joint(section, workloads)?;
    let (load_goal, constraints) = load_goal::read(section, &metric, load, constraints, joint.is_some())?;
    let price_per_hour = read_price(section)?;
    let objective = Objective { metric, goal, constraints, joint, price_per_hour, load_goal };
    if price_per_hour.is_none() && objective.metrics().any(|name| name == Measurement::COST_PER_MILLION_TOKENS) {
        let problem = format!("is missing, and {} needs it", Measurement::COST_PER_MILLION_TOKENS);
        let hint = "set it to the price of one device for an hour, such as 2.5".to_owned();
        return Err(section.error("price_per_hour", problem, Some(hint)));
    }
    Ok(objective)
}

/// Reads a limit.
pub(super) fn read_constraint(section: &Section<'_>, load: &LoadJob) -> Result<Constraint, DocumentError> {
    let metric: String = section.required("metric")?;
    check_metric(section, "metric", &metric, load)?;
    if metric == Measurement::LOAD_UNDER_SLO {
        let hint = "set objective.maximize to it, and list the limits of the load as constraints".to_owned();
        return Err(section.error("metric", format!("{metric} is an objective, and no limit"), Some(hint)));
    }
    let limit = match (section.optional("at_most")?, section.optional("at_least")?) {
        (Some(limit), None) => MetricLimit::AtMost(limit),
        (None, Some(limit)) => MetricLimit::AtLeast(limit),
        _ => return Err(section.error("at_most", "set either at_most or at_least", None)),
    };
    Ok(Constraint { metric, limit })
}

fn read_price(section: &Section<'_>) -> Result<Option<f64>, DocumentError> {
    let price = section.optional::<f64>("price_per_hour")?;
    if let Some(price) = price.filter(|price| !(price.is_finite() && *price > 0.0)) {
        let hint = "it is the price of one device for an hour, such as 2.5".to_owned();
        return Err(section.error("price_per_hour", format!("{price} is not above 0"), Some(hint)));
    }
    Ok(price)
}

/// Reads the rule for several workloads.
fn read_joint(section: &Section<'_>, workloads: &[NamedWorkload]) -> Result<Option<JointObjective>, DocumentError> {
    let names = WorkloadAggregate::ALL.map(WorkloadAggregate::name);
    let over = section.optional::<String>("over")?;
    if workloads.is_empty() {
        let hint = "list the workloads as [[workload]], each with a name, or remove it".to_owned();
        return over.map_or(Ok(None), |_| Err(section.error("over", "needs several workloads", Some(hint))));
    }
    let over = match over.as_deref() {
        None => WorkloadAggregate::Mean,
        Some(name) => WorkloadAggregate::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            let hint = nearest(name, names).map(|near| format!("did you mean {near:?}?"));
            let known = names.map(|name| format!("{name:?}")).join(", ");
            section.error("over", format!("{name:?} is not a rule for several workloads; there are {known}"), hint)
        })?,
    };
    let weighted = |entry: &NamedWorkload| WeightedWorkload { name: entry.name.clone(), weight: entry.weight };
    Ok(Some(JointObjective { over, workloads: workloads.iter().map(weighted).collect() }))
}

fn check_metric(section: &Section<'_>, key: &str, name: &str, load: &LoadJob) -> Result<(), DocumentError> {
    if !Measurement::is_known(name) {
        let hint = format!("did you mean `{}`?", Measurement::nearest(name));
        return Err(section.error(key, format!("{name:?} is not a metric"), Some(hint)));
    }
    if name == "request_goodput" && load.goodput.is_empty() {
        let hint = "set load.goodput, such as [\"ttft:200\", \"tpot:50\"], in milliseconds".to_owned();
        return Err(section.error(key, "request_goodput needs the latency limits of load.goodput", Some(hint)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    fn read_objective(text: &str) -> Result<Objective, DocumentError> {
        let load = LoadJob::closed(8, 100);
        Document::from_text("study.toml", text).parse(|section| read(section, &load, &[]))
    }

    #[test]
    fn a_cost_needs_the_price_of_a_device() {
        let cost = "minimize = 'cost_per_million_tokens'";
        assert_eq!(read_objective(&format!("{cost}\nprice_per_hour = 2.5")).unwrap().price_per_hour, Some(2.5));
        let limit = "maximize = 'output_throughput'\n[[constraint]]\nmetric = 'cost_per_million_tokens'\nat_most = 1";
        for text in [cost, limit] {
            let error = read_objective(text).unwrap_err();
            assert_eq!(
                (error.key.as_str(), error.problem.as_str()),
                ("price_per_hour", "is missing, and cost_per_million_tokens needs it")
            );
        }
        let error = read_objective(&format!("{cost}\nprice_per_hour = 0")).unwrap_err();
        assert_eq!((error.key.as_str(), error.problem.as_str()), ("price_per_hour", "0 is not above 0"));
    }
}
