//! Refusals of the simulated engine to start, in the words and with the exit code of vLLM.

use crate::facts::EngineVersion;
use crate::rule::{Finding, Severity};

/// A failed start, or an end of the server because of a fault: exit code and last output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    /// 2 if the arguments cannot be parsed, 1 for all later failures of the start. A fault may set any other code.
    pub exit_code: u8,
    /// The text on standard error, without a line end.
    pub text: String,
}

impl Refusal {
    /// Returns argparse's refusal.
    pub(super) fn usage(error: impl std::fmt::Display) -> Self {
        let text = format!(
            "usage: vllm serve [model_tag] [options]\n\nFor full list:            vllm serve --help=all\n\nvllm serve: error: {error}"
        );
        Self { exit_code: 2, text }
    }

    /// Returns the refusal of that part of vLLM which would find the same problem: parser, configuration class or
    /// engine process.
    pub(super) fn from_finding(version: EngineVersion, finding: &Finding) -> Self {
        let message = &finding.message;
        match (finding.severity, message.split_once(": Input should be ")) {
            (Severity::Arguments, _) => Self::usage(message),
            (Severity::Configuration, Some((field, limit))) => Self::field(field, limit),
            (Severity::Configuration, None) => Self::value(version, class(finding.rule), message),
            _ => Self::engine(version, &format!("ValueError: {message}")),
        }
    }

    /// Returns the refusal of a combination of values by the configuration class `class`.
    pub(super) fn value(version: EngineVersion, class: &str, message: &str) -> Self {
        if version < EngineVersion::new(0, 12, 0) {
            return Self::traceback("config.py", &format!("ValueError: {message}"));
        }
        let detail = format!(
            "Value error, {message} [type=value_error, input_value=ArgsKwargs((), {{...}}), input_type=ArgsKwargs]"
        );
        Self::pydantic(class, None, &detail, "value_error")
    }

    /// Returns a configuration class's refusal of one field.
    ///
    /// `limit` is, for example, `less than or equal to 1, input_value=2`.
    fn field(field: &str, limit: &str) -> Self {
        let (limit, value) = limit.split_once(", ").unwrap_or((limit, "input_value=None"));
        let relation = limit.rsplit_once(' ').map_or(limit, |(relation, _)| relation);
        let kind = relation.replace(" or equal to", " equal").replace(' ', "_");
        let input = if value.contains('.') { "float" } else { "int" };
        let detail = format!("Input should be {limit} [type={kind}, {value}, input_type={input}]");
        Self::pydantic(class(field), Some(field), &detail, &kind)
    }

    fn pydantic(class: &str, field: Option<&str>, detail: &str, kind: &str) -> Self {
        let field = field.map(|field| format!("\n{field}")).unwrap_or_default();
        let error = format!(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for {class}{field}\n  {detail}\n    \
             For further information visit https://errors.pydantic.dev/2.12/v/{kind}"
        );
        Self::traceback("config/vllm.py", &error)
    }

    /// Returns a Python traceback that ends in `file` with `error`.
    pub(super) fn traceback(file: &str, error: &str) -> Self {
        let text = format!(
            "Traceback (most recent call last):\n  File \"/usr/local/bin/vllm\", line 8, in <module>\n    \
             sys.exit(main())\n  File \"/usr/local/lib/python3.12/dist-packages/vllm/{file}\", line 1, in <simulated>\n\
             {error}"
        );
        Self { exit_code: 1, text }
    }

    /// Returns the parent process's report that the engine's process did not start because of `cause`.
    pub(super) fn engine(version: EngineVersion, cause: &str) -> Self {
        if version.is_v0() {
            return Self::traceback("worker/worker.py", cause);
        }
        let child = Self::traceback("v1/engine/core.py", cause).text;
        let parent = Self::traceback(
            "v1/engine/utils.py",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        );
        Self { exit_code: 1, text: format!("EngineCore failed to start.\n{child}\n{}", parent.text) }
    }
}

/// Returns the configuration class that checks a field or the subject of a rule.
fn class(subject: &str) -> &'static str {
    match subject {
        "R5" | "block_size" | "gpu_memory_utilization" | "swap_space" | "cpu_offload_gb" => "CacheConfig",
        "R11" | "max_model_len" => "ModelConfig",
        "R8" => "VllmConfig",
        "R10" => "ParallelConfig",
        subject if subject.ends_with("_parallel_size") => "ParallelConfig",
        _ => "SchedulerConfig",
    }
}
