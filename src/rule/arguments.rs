//! Flags that the release does not have, and values that its parser or its field bounds refuse.

use super::{Candidate, Rule, Severity};
use crate::flag::FlagTable;

pub(super) const RULES: &[Rule] = &[Rule { id: "A1", check: known }, Rule { id: "R4a", check: within_bounds }];

fn known(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let error = FlagTable::for_version(candidate.facts.version).render(candidate.config).err()?;
    Some((Severity::Arguments, error.to_string()))
}

fn within_bounds(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let table = FlagTable::for_version(candidate.facts.version);
    candidate.config.iter().find_map(|(name, value)| {
        let (bounds, number) = (table.find(name)?.bounds()?, value.as_f64()?);
        let broken = [
            (bounds.ge.filter(|limit| number < *limit), "greater than or equal to"),
            (bounds.gt.filter(|limit| number <= *limit), "greater than"),
            (bounds.le.filter(|limit| number > *limit), "less than or equal to"),
            (bounds.lt.filter(|limit| number >= *limit), "less than"),
        ];
        let (limit, relation) = broken.into_iter().find_map(|(limit, relation)| Some((limit?, relation)))?;
        let field = name.replace('-', "_");
        Some((Severity::Configuration, format!("{field}: Input should be {relation} {limit}, input_value={value}")))
    })
}

#[cfg(test)]
mod tests {
    use crate::facts::Device;
    use crate::rule::tests::verdict;

    #[test]
    fn values_beyond_a_field_bound_are_refused_with_the_limit() {
        let finding = verdict("0.32.0", Device::Cpu, "--max-num-seqs 0");
        let text = "max_num_seqs: Input should be greater than or equal to 1, input_value=0";
        assert_eq!(finding, Some(("R4a", true, text.to_owned())));
        assert!(verdict("0.32.0", Device::Cpu, "--gpu-memory-utilization 1.5").is_some_and(|(id, ..)| id == "R4a"));
    }
}
