//! Tensor names that training programs wrap in prefixes.

use std::collections::BTreeMap;

/// Name parts that PyTorch inserts for a compiled, a sharded or a checkpointed module.
const WRAPPERS: [&str; 3] = [
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
];
/// First part of every name in a module trained in multiple processes.
const PARALLEL: &str = "module.";
/// First parts that names lack in a model saved without its head.
const MODELS: [&str; 3] = ["model.", "backbone.", "transformer."];

/// Returns the name without wrappers.
pub(super) fn unwrapped(name: &str) -> String {
    let parts = name.split('.').filter(|part| !WRAPPERS.contains(part));
    let parts = parts.collect::<Vec<_>>().join(".");
    let mut rest = parts.as_str();
    while let Some(inner) = rest.strip_prefix(PARALLEL) {
        rest = inner;
    }
    rest.into()
}

/// Returns the name of a tensor in a checkpoint that was saved without its head: no name in it begins with the model's part.
pub(super) fn headless<'n, T>(name: &'n str, entries: &BTreeMap<String, T>) -> Option<&'n str> {
    let part = MODELS.into_iter().find(|part| name.starts_with(part))?;
    let has_part = entries.range(part.to_string()..).next();
    if has_part.is_some_and(|(name, _)| name.starts_with(part)) {
        None
    } else {
        name.strip_prefix(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_names_are_unwrapped() {
        for (wrapped, name) in [
            ("model.norm.weight", "model.norm.weight"),
            ("_orig_mod.model.norm.weight", "model.norm.weight"),
            (
                "module._orig_mod.module.model.norm.weight",
                "model.norm.weight",
            ),
            (
                "model.layers.0._fsdp_wrapped_module.mlp.weight",
                "model.layers.0.mlp.weight",
            ),
            ("vision.module.weight", "vision.module.weight"),
        ] {
            assert_eq!(unwrapped(wrapped), name);
        }
    }

    #[test]
    fn a_model_without_its_head_has_shorter_names() {
        let entries = |names: &[&str]| names.iter().map(|name| (name.to_string(), ())).collect();
        let bare: BTreeMap<String, ()> = entries(&["embed_tokens.weight", "norm.weight"]);
        assert_eq!(headless("model.norm.weight", &bare), Some("norm.weight"));
        assert_eq!(headless("lm_head.weight", &bare), None);
        let whole: BTreeMap<String, ()> = entries(&["lm_head.weight", "model.embed_tokens.weight"]);
        assert_eq!(headless("model.norm.weight", &whole), None);
    }
}
