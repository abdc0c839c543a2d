//! The helper that sets live knobs in a running server.
//!
//! The helper and the tuner exchange two files in a folder of the launch. `settings.json` has the wanted values, with null
//! for the launched value. `state.json` has the values that the server uses, or the reason why it refuses:
//!
//! ```text
//! settings.json   {"version": 3, "settings": {"max-num-seqs": 64, "enable-prefix-caching": null}}
//! state.json      {"version": 3, "values": {"max-num-seqs": 64, "enable-prefix-caching": true}}
//!                 {"version": 3, "refused": "max-num-seqs: 512 is above the launched 256"}
//! ```
//!
//! The first state has version 0 and the launched values. The server reads new settings when a request arrives and no
//! other one is unfinished. It empties its prefix cache before it uses them.

use crate::config::Config;
use crate::trial::LiveKnob;

/// The names of the two files.
pub const LIVE_SETTINGS: &str = "settings.json";
pub const LIVE_STATE: &str = "state.json";

/// A helper that runs inside the engine.
#[derive(Clone, Copy, Debug)]
pub struct LiveHelper {
    pub knobs: &'static [LiveKnob],
    /// Names and contents of the files that a launch needs in its folder.
    pub files: &'static [(&'static str, &'static str)],
    /// Arguments of a launch. `{folder}` stands for the folder.
    pub arguments: &'static [&'static str],
    /// The environment variable with a list of folders, which the folder is put in front of.
    pub search_path: Option<&'static str>,
    /// Returns whether a launch of this configuration accepts the helper.
    pub accepts: fn(&Config) -> bool,
}
