//! Comments at the top of an exported server: its start-up, its model, its secrets, and the parts that it lacks.

use std::collections::BTreeMap;

use super::server::{DOWNLOAD_S, MIN_STARTUP_S, STARTUP_FACTOR};
use super::{ExportedServer, ModelPlace};
use crate::config::{Config, Value};
use crate::engine::{ServerStarts, is_variable, own_models};

impl ExportedServer {
    /// Returns the comment on the allowed start-up.
    pub(super) fn startup_comment(&self) -> String {
        let budget = self.startup_budget_s;
        let download = match self.model {
            ModelPlace::Hub(_) => format!(" and {} minutes to download the model", DOWNLOAD_S / 60),
            ModelPlace::Local(_) => String::new(),
        };
        match self.startup_s {
            Some(measured) => format!(
                "The start-up took {measured:.1} s when measured. The startup probe allows {budget} s: {STARTUP_FACTOR} \
                 times that, at least {MIN_STARTUP_S} s,{download}.",
            )
            .replace(",.", "."),
            None => format!("The start-up was not measured. The startup probe allows {budget} s."),
        }
    }

    /// Returns the comment on the model's files in a cluster. `volume` is the place for a volume with downloaded models.
    pub(super) fn model_comment(&self, volume: &str) -> String {
        match &self.model {
            ModelPlace::Hub(_) => format!("Each new pod downloads the model. To keep it, {volume}."),
            ModelPlace::Local(path) => format!(
                "The model is the directory {path} of the node (hostPath). Replace the volume `model` if the model is \
                 elsewhere.",
            ),
        }
    }

    /// Returns the comment on the secrets that must exist in a cluster, and the name of their object.
    pub(super) fn secret_comment(&self) -> Option<String> {
        let literals: Vec<_> = self.secrets.iter().map(|name| format!("--from-literal={name}=\"${name}\"")).collect();
        let create = || {
            let name = self.secret_name();
            format!("Secrets were not stored. Create them: kubectl create secret generic {name} {}", literals.join(" "))
        };
        (!literals.is_empty()).then(create)
    }

    /// Returns remarks on parts of the launch that a container lacks.
    pub(super) fn remarks(
        &self,
        env: &BTreeMap<String, String>,
        program: &[String],
        starts: &ServerStarts,
    ) -> Vec<String> {
        let mut remarks = Vec::new();
        let wrapper = starts.find(program).map_or(program, |server| &program[..server.start]);
        if !wrapper.is_empty() && self.engine().runs_model() {
            let words: Vec<_> = wrapper.iter().map(|word| crate::export::quote(word)).collect();
            remarks.push(format!("Measured through a wrapper, which is not part of this file: {}", words.join(" ")));
        }
        for name in env.keys().filter(|name| !is_variable(name)) {
            remarks.push(format!("Omitted, because this is no name of a variable: {name}"));
        }
        let texts = self.effective.iter().filter_map(|(_, value)| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        });
        let values = texts.chain(own_models(&self.effective, &Config::new())).chain(self.env.values().cloned());
        let mut paths: Vec<_> = values.filter(|value| value.starts_with('/')).collect();
        paths.sort();
        paths.dedup();
        if !paths.is_empty() {
            remarks.push(format!("Not in the image, so that they must be mounted or replaced: {}", paths.join(", ")));
        }
        remarks
    }
}
