//! The scenarios that both clients run.

use crate::server::Timing;

#[derive(Debug)]
pub(crate) struct Scenario {
    pub name: &'static str,
    pub concurrency: u32,
    pub requests: u32,
    pub input_len: u32,
    pub timing: Timing,
}

const fn scenario(
    name: &'static str,
    concurrency: u32,
    requests: u32,
    input_len: u32,
    pace: [u64; 2],
    tokens: u32,
) -> Scenario {
    let [first_ms, gap_ms] = pace;
    Scenario {
        name,
        concurrency,
        requests,
        input_len,
        timing: Timing { first_ms, gap_ms, tokens, prompt_tokens: input_len },
    }
}

pub(crate) const ALL: &[Scenario] = &[
    scenario("start", 1, 1, 32, [50, 20], 1),
    scenario("streams-128", 128, 256, 32, [50, 10], 200),
    scenario("streams-1000", 1000, 2000, 32, [50, 20], 200),
    scenario("streams-5000", 5000, 5000, 32, [50, 100], 50),
    scenario("firehose", 64, 256, 32, [0, 0], 4000),
    scenario("long-prompts", 16, 64, 50_000, [50, 20], 20),
];

/// Returns the scenarios of these names, in the order of [`ALL`]; all if none is named.
pub(crate) fn choose(names: &[String]) -> Result<Vec<&'static Scenario>, String> {
    if let Some(name) = names.iter().find(|name| ALL.iter().all(|scenario| scenario.name != **name)) {
        let known: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
        return Err(format!("no scenario is called {name:?}; there are {}", known.join(", ")));
    }
    Ok(ALL.iter().filter(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name)).collect())
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Timing { first_ms, gap_ms, tokens, .. } = self.timing;
        let Self { name, concurrency, requests, input_len, .. } = self;
        write!(f, "{name}: {concurrency} streams, {requests} requests of {input_len} + {tokens} tokens, ")?;
        match gap_ms {
            0 => f.write_str("as fast as the client reads"),
            _ => write!(f, "first after {first_ms} ms, then one every {gap_ms} ms"),
        }
    }
}
