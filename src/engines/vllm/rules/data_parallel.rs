//! Data parallelism: the distribution of the ranks, and the load balancing (`create_engine_config` and
//! `ParallelConfig` in vLLM 0.32).

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::EngineVersion;

const V0_32: ReleaseRange = ReleaseRange::starting_at(EngineVersion::V0_32);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R16c",
        condition: "nodes, ranks and load balancing of the data-parallel launch are consistent",
        releases: V0_32,
        severity: Severity::Configuration,
        check: launch_is_consistent,
    },
    Rule {
        id: "R16d",
        condition: "servers for single data-parallel ranks have valid ranks and ports",
        releases: V0_32,
        severity: Severity::Configuration,
        check: several_ports,
    },
];

/// The flags that decide the data-parallel launch. Without any of them it has one rank on one node.
const FLAGS: [&str; 9] = [
    "data-parallel-size",
    "data-parallel-size-local",
    "data-parallel-rank",
    "data-parallel-start-rank",
    "data-parallel-backend",
    "data-parallel-hybrid-lb",
    "data-parallel-external-lb",
    "enable-fault-tolerance",
    "nnodes",
];

fn launch_is_consistent(candidate: &Candidate<'_>) -> Option<Violation> {
    let given = |name: &&str| candidate.config.get(name).is_some();
    if !FLAGS.iter().any(given) && !candidate.has("fault-tolerance-config") {
        return None;
    }
    let size = candidate.number_or("data-parallel-size", 1);
    let backend = candidate.config.get_str("data-parallel-backend").unwrap_or("mp");
    let (hybrid, external) = (candidate.is_on("data-parallel-hybrid-lb"), candidate.is_on("data-parallel-external-lb"));
    let mut rank = candidate.number("data-parallel-rank");
    let mut local = candidate.number("data-parallel-size-local");
    let nodes = candidate.number_or("nnodes", 1);
    if hybrid && external {
        let message = "Invalid data-parallel launch options: `--data-parallel-hybrid-lb` and \
                       `--data-parallel-external-lb` cannot be enabled together. Enable only one load-balancing mode.";
        return Some(Violation::new(message).unset("data-parallel-hybrid-lb"));
    }
    if nodes > 1 {
        let spread = distribute_ranks(candidate, size, nodes, backend)?;
        match spread {
            RankDistribution::Refused(violation) => return Some(violation),
            RankDistribution::Inferred { rank: inferred, local: ranks } if size > 1 && external => {
                if rank.is_none() && nodes % size != 0 {
                    let message = "Invalid data-parallel launch options: `--node-rank` cannot unambiguously identify \
                                   external data-parallel ranks when `--nnodes` is not divisible by \
                                   `--data-parallel-size`. Set a unique `--data-parallel-rank` for each external-LB \
                                   process.";
                    return Some(Violation::new(message).unset("data-parallel-external-lb"));
                }
                rank = rank.or(Some(inferred));
                let _ = ranks;
            }
            RankDistribution::Inferred { rank: inferred, local: ranks } => {
                local = local.or(Some(ranks));
                if candidate.number("data-parallel-start-rank").is_none() && rank.is_none() && !external {
                    return in_range(candidate, size, inferred, local.unwrap_or(size), false);
                }
            }
        }
    }
    let own_rank = external || rank.is_some();
    if (candidate.is_on("enable-fault-tolerance")) && !own_rank {
        let message = "Fault tolerance requires external load balancer mode (--data-parallel-external-lb or \
                       --data-parallel-rank). Internal LB mode is not supported.";
        return Some(Violation::new(message).unset("enable-fault-tolerance"));
    }
    if size > 1 && own_rank && !candidate.is_moe() {
        let message = "Non-MoE models do not support external data parallel mode. For external load balancing, launch \
                       independent vLLM instances without --data-parallel-* arguments.";
        let violation = Violation::new(message).unset("data-parallel-size").unset("data-parallel-rank");
        return Some(violation.unset("data-parallel-external-lb"));
    }
    if own_rank {
        let Some(rank) = rank else {
            let message = "Invalid data-parallel launch options: `--data-parallel-external-lb` requires a \
                           data-parallel rank. Set `--data-parallel-rank`, or set `--data-parallel-size` greater than \
                           1 and use `--nnodes` with `--node-rank` so the rank can be inferred.";
            return Some(Violation::new(message).unset("data-parallel-external-lb"));
        };
        if local.is_some_and(|local| local != 1) {
            let local = local.unwrap_or_default();
            let message = format!(
                "Invalid data-parallel launch options: an external data-parallel rank requires \
                 `--data-parallel-size-local 1`; got {local}. Set it to 1 or omit it."
            );
            return Some(Violation::new(message).unset("data-parallel-size-local"));
        }
        return in_range(candidate, size, rank, 1, true);
    }
    let Some(local) = local else {
        if hybrid {
            let message = "Invalid data-parallel launch options: `--data-parallel-hybrid-lb` requires \
                           `--data-parallel-size-local`. Set it to the number of data-parallel ranks on this node.";
            return Some(Violation::new(message).unset("data-parallel-hybrid-lb"));
        }
        if !["mp", "ray"].contains(&backend) && candidate.config.get("data-parallel-address").is_none() {
            return Some(only_ray_or_mp(backend));
        }
        return in_range(candidate, size, 0, size, false);
    };
    let start = candidate.number("data-parallel-start-rank");
    let alone = (hybrid || start.is_some()) && local == 1;
    in_range(candidate, size, start.unwrap_or(0), local, alone)
}

fn only_ray_or_mp(backend: &str) -> Violation {
    Violation::new(format!("data_parallel_backend can only be ray or mp, got {backend}")).unset("data-parallel-backend")
}

enum RankDistribution {
    Refused(Violation),
    /// The first rank of this node and the number of its ranks.
    Inferred {
        rank: i64,
        local: i64,
    },
}

/// Returns the distribution of the ranks over several nodes. `None` if a size is not positive, which another rule
/// reports.
fn distribute_ranks(candidate: &Candidate<'_>, size: i64, nodes: i64, backend: &str) -> Option<RankDistribution> {
    if backend != "mp" {
        let message = format!(
            "Invalid data-parallel launch options: `--nnodes {nodes}` requires `--data-parallel-backend mp`; got \
             `--data-parallel-backend {backend}`. Use the MP backend or set `--nnodes 1`."
        );
        return Some(RankDistribution::Refused(Violation::new(message).unset("nnodes").unset("node-rank")));
    }
    let sizes = ["tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size"];
    let within =
        sizes.iter().try_fold(1_i64, |all, name| all.checked_mul(candidate.number_or(name, 1))).filter(|n| *n > 0)?;
    let world = within.checked_mul(size).filter(|world| *world > 0)?;
    if world % nodes != 0 {
        let message = format!(
            "Invalid data-parallel launch options: `--nnodes {nodes}` must evenly divide the total world size \
             ({world}). Adjust `--nnodes`, `--data-parallel-size`, `--pipeline-parallel-size`, \
             `--tensor-parallel-size`, or `--prefill-context-parallel-size`."
        );
        return Some(RankDistribution::Refused(Violation::new(message).unset("nnodes").unset("node-rank")));
    }
    let node = candidate.number_or("node-rank", 0);
    if !(0..nodes).contains(&node) {
        let message = format!(
            "Invalid data-parallel launch options: `--node-rank` must be between 0 and {}; got `--node-rank {node}`. \
             Set it to this node's zero-based index.",
            nodes - 1
        );
        return Some(RankDistribution::Refused(Violation::new(message).set("node-rank", 0_i64)));
    }
    let local_world = world / nodes;
    Some(RankDistribution::Inferred { rank: node * local_world / within, local: (local_world / within).max(1) })
}

/// Checks the ranks like `ParallelConfig`.
fn in_range(candidate: &Candidate<'_>, size: i64, rank: i64, local: i64, external: bool) -> Option<Violation> {
    if local > size {
        let message = format!("data_parallel_size_local ({local}) must be <= data_parallel_size ({size})");
        return Some(Violation::new(message).unset("data-parallel-size-local"));
    }
    if size <= 1 && external {
        let message = "data_parallel_external_lb can only be set when data_parallel_size > 1";
        let violation = Violation::new(message).unset("data-parallel-external-lb").unset("data-parallel-rank");
        return Some(violation.unset("data-parallel-hybrid-lb").unset("data-parallel-start-rank"));
    }
    let outside = (size > 1 || local == 0) && !(0..size).contains(&rank);
    let backend = candidate.text("distributed-executor-backend");
    if (size > 1 || local == 0) && backend == Some("external_launcher") && !candidate.facts.env.contains_key("RANK") {
        let message = "the environment variable RANK is not set, which external_launcher reads under data parallelism";
        return Some(Violation::new(message).unset("distributed-executor-backend"));
    }
    outside.then(|| {
        let message = format!("data_parallel_rank ({rank}) must be in the range [0, {size})");
        Violation::new(message).unset("data-parallel-rank").unset("data-parallel-start-rank")
    })
}

/// Checks `--data-parallel-multi-port-external-lb` like `validate_multi_port_external_lb_args` in vLLM.
fn several_ports(candidate: &Candidate<'_>) -> Option<Violation> {
    const FLAG: &str = "data-parallel-multi-port-external-lb";
    if !candidate.is_on(FLAG) {
        return None;
    }
    let refused = |problem: &str| Some(Violation::new(format!("Error: --{FLAG} {problem}")).unset(FLAG));
    if candidate.is_on("grpc") || candidate.has("uds") {
        return refused("does not support --grpc and --uds");
    }
    if candidate.has("ssl-keyfile") != candidate.has("ssl-certfile") {
        return refused("needs --ssl-keyfile and --ssl-certfile together");
    }
    if candidate.number("api-server-count").is_some_and(|count| count != 1) {
        return refused("currently requires --api-server-count=1");
    }
    if candidate.has("data-parallel-rank") {
        return refused("manages child --data-parallel-rank values internally");
    }
    if candidate.is_on("data-parallel-external-lb") || candidate.is_on("data-parallel-hybrid-lb") {
        return refused("cannot be combined with --data-parallel-external-lb or --data-parallel-hybrid-lb");
    }
    let size = candidate.number_or("data-parallel-size", 1);
    if size < 2 {
        return refused("requires --data-parallel-size > 1");
    }
    let Some(local) = candidate.number("data-parallel-size-local").filter(|local| *local >= 2) else {
        return refused("requires --data-parallel-size-local >= 2");
    };
    if local > size || size % local != 0 {
        return refused(&format!(
            "needs --data-parallel-size ({size}) divisible by --data-parallel-size-local ({local})"
        ));
    }
    let first = candidate.number("data-parallel-start-rank").unwrap_or(candidate.number_or("node-rank", 0) * local);
    if first.saturating_add(local) > size {
        return refused("ranks would exceed --data-parallel-size");
    }
    let (port, own) = (candidate.number_or("port", 8000), candidate.number_or("data-parallel-supervisor-port", 9256));
    if (port..port.saturating_add(local)).contains(&own) {
        return refused(&format!("has its own port {own} among the ports of its ranks, which begin at {port}"));
    }
    None
}
