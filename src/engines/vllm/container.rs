//! Container images of vLLM's releases, and the names of its arguments in projects that serve it on Kubernetes.

use crate::engine::{ChartKey, ServingProjects};
use crate::facts::EngineVersion;

/// The first release whose image for processors is on Docker Hub. Earlier ones are in a registry of Amazon
/// (`docs/getting_started/installation/cpu.md`).
const CPU_IMAGE_SINCE: EngineVersion = EngineVersion::new(0, 16, 0);

/// Names in the templates of KServe (`config/llmisvcconfig/config-llm-template.yaml`) and of the chart of vLLM's
/// production stack (`helm/templates/deployment-vllm-multi.yaml`).
pub(super) static PROJECTS: ServingProjects = ServingProjects {
    arguments_variable: "VLLM_ADDITIONAL_ARGS",
    chart_group: "vllmConfig",
    chart_keys: &[
        ChartKey { flag: "dtype", key: "dtype", stated_default: None },
        ChartKey { flag: "enable-chunked-prefill", key: "enableChunkedPrefill", stated_default: None },
        ChartKey {
            flag: "enable-prefix-caching",
            key: "enablePrefixCaching",
            // Without the key the chart passes `--no-enable-prefix-caching`. V1 caches prefixes by default.
            stated_default: Some(|version| !version.is_v0()),
        },
        ChartKey { flag: "gpu-memory-utilization", key: "gpuMemoryUtilization", stated_default: None },
        ChartKey { flag: "max-loras", key: "maxLoras", stated_default: None },
        ChartKey { flag: "max-model-len", key: "maxModelLen", stated_default: None },
        ChartKey { flag: "max-num-seqs", key: "maxNumSeqs", stated_default: None },
        ChartKey { flag: "tensor-parallel-size", key: "tensorParallelSize", stated_default: None },
    ],
};

/// Returns the image of a release. A build without a release has none, and neither has one for another device than
/// processors and CUDA.
pub(super) fn container_image(reported: &str) -> Option<String> {
    let (release, build) = reported.split_once('+').unwrap_or((reported, ""));
    let version: EngineVersion = release.parse().ok()?;
    let is_release = release.split('.').enumerate().all(|(index, part)| {
        let number = if index < 3 { Some(part) } else { part.strip_prefix("post") };
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let repository = match build {
        "cpu" if version >= CPU_IMAGE_SINCE => "vllm/vllm-openai-cpu",
        "cpu" => "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo",
        _ if build.is_empty() || build.starts_with("cu") => "vllm/vllm-openai",
        _ => return None,
    };
    (is_release && release.split('.').count() >= 3).then(|| format!("{repository}:v{release}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;

    #[test]
    fn an_image_has_the_release_and_the_device_of_the_measured_build() {
        for (reported, expected) in [
            ("0.32.0", Some("vllm/vllm-openai:v0.32.0")),
            ("0.10.1.post1", Some("vllm/vllm-openai:v0.10.1.post1")),
            ("0.32.0+cu129", Some("vllm/vllm-openai:v0.32.0")),
            ("0.32.0+cpu", Some("vllm/vllm-openai-cpu:v0.32.0")),
            ("0.10.2+cpu", Some("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.10.2")),
            ("0.32.0+rocm700", None),
            ("0.32.0rc1", None),
            ("0.1.dev5+g0123abc", None),
            ("0.23.1rc1.dev901+g2f3f441f8", None),
            ("0.32", None),
            ("dev", None),
            ("0.32.0\n# x", None),
            ("", None),
        ] {
            assert_eq!(container_image(reported).as_deref(), expected, "{reported:?}");
        }
    }

    #[test]
    fn each_key_of_the_chart_belongs_to_a_flag() {
        let table = FLAGS.for_version(FLAGS.newest_release());
        for key in PROJECTS.chart_keys {
            assert!(table.find(key.flag).is_some(), "{}", key.flag);
        }
    }
}
