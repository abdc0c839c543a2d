use std::collections::HashMap;
use std::sync::OnceLock;
pub(crate) fn knob(name: &str, default: f64) -> f64 {
    static K: OnceLock<HashMap<String, f64>> = OnceLock::new();
    let k = K.get_or_init(|| {
        std::env::var("LABP")
            .unwrap_or_default()
            .split(',')
            .filter_map(|p| {
                let (a, b) = p.split_once('=')?;
                Some((a.to_owned(), b.parse().ok()?))
            })
            .collect()
    });
    k.get(name).copied().unwrap_or(default)
}
