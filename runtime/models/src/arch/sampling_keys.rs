//! The sampling parameters in a model's files: keys of GGUF, and `generation_config.json`.

use serde_json::{Map, Value as Json};
use waterline_quant::gguf::{Gguf, Value};

use crate::model::{PARAMETERS, Sampling, TEMPERATURE};

/// Samplers of llama.cpp that do not exist here; 0 turns each off.
const OTHERS: [&str; 2] = [
    "general.sampling.mirostat",
    "general.sampling.xtc_probability",
];

/// Reads the keys of a GGUF file. Adds a note on each value that is ignored.
pub(super) fn from_gguf(gguf: &Gguf, notes: &mut Vec<String>) -> Sampling {
    let mut sampling = Sampling::default();
    let number = |value: &Value| value.as_f32().or(value.as_i64().map(|whole| whole as f32));
    for (index, parameter) in PARAMETERS.iter().enumerate() {
        if let Some(value) = gguf.get(parameter.gguf) {
            set(&mut sampling, index, number(value))
                .unwrap_or_else(|reason| notes.push(ignored(parameter.gguf, &reason)));
        }
    }
    for key in OTHERS {
        let value = gguf.get(key).and_then(number);
        if value.is_some_and(|value| value > 0.0) {
            notes.push(ignored(key, "there is no such sampler"));
        }
    }
    sampling
}

/// Reads a `generation_config.json`. Adds a note on each value that is ignored.
pub(super) fn from_json(config: &Map<String, Json>, notes: &mut Vec<String>) -> Sampling {
    let mut sampling = Sampling::default();
    for (index, parameter) in PARAMETERS.iter().enumerate() {
        let value = config.get(parameter.json).filter(|value| !value.is_null());
        if let Some(value) = value {
            set(
                &mut sampling,
                index,
                value.as_f64().map(|value| value as f32),
            )
            .unwrap_or_else(|reason| notes.push(ignored(parameter.json, &reason)));
        }
    }
    // transformers ignores the temperature if it does not sample.
    if config.get("do_sample") == Some(&Json::Bool(false)) {
        set(&mut sampling, TEMPERATURE, Some(0.0))
            .unwrap_or_else(|reason| notes.push(ignored("do_sample", &reason)));
    }
    sampling
}

/// Sets a parameter; `value` is `None` if the file has no number there.
fn set(sampling: &mut Sampling, index: usize, value: Option<f32>) -> Result<(), String> {
    sampling.set(index, value.ok_or("expected a number")?)
}

fn ignored(key: &str, reason: &str) -> String {
    format!("{key}: {reason}: it is ignored")
}

/// The keys of a GGUF file for these parameters.
pub(super) fn to_gguf(sampling: &Sampling) -> impl Iterator<Item = (String, Value)> {
    sampling.iter().map(|(parameter, value)| {
        let value = if parameter.whole {
            Value::I32(value as i32)
        } else {
            Value::F32(value)
        };
        (parameter.gguf.to_string(), value)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use waterline_compute::sampler::SamplerParams;

    use super::*;

    fn read(config: Json) -> (String, Vec<String>) {
        let mut notes = Vec::new();
        let sampling = from_json(config.as_object().expect("an object"), &mut notes);
        (sampling.to_string(), notes)
    }

    #[test]
    fn values_out_of_range_are_ignored_with_a_note() {
        let (sampling, notes) = read(
            json!({"temperature": 0.6, "top_k": 20.5, "top_p": 2, "min_p": "a", "do_sample": true}),
        );
        assert_eq!(sampling, "temperature 0.6");
        let keys = ["top_k: ", "top_p: ", "min_p: "];
        assert_eq!(notes.len(), keys.len(), "{notes:?}");
        assert!(
            notes
                .iter()
                .zip(keys)
                .all(|(note, key)| note.starts_with(key)),
            "{notes:?}"
        );
    }

    #[test]
    fn a_model_that_does_not_sample_takes_the_most_probable_token() {
        let (sampling, notes) = read(json!({"temperature": 0.6, "top_k": 20, "do_sample": false}));
        assert_eq!(
            (sampling.as_str(), notes),
            ("top_k 20, temperature 0", Vec::new())
        );
        assert_eq!(read(json!({"top_p": null})), (String::new(), Vec::new()));
    }

    #[test]
    fn numbers_below_zero_mean_no_limit() {
        let mut notes = Vec::new();
        let config = json!({"top_k": -1, "penalty_last_n": -1});
        let sampling = from_json(config.as_object().expect("an object"), &mut notes);
        let params = sampling.over(SamplerParams::default());
        assert_eq!(
            (params.top_k, params.penalty_window, notes),
            (0, 4096, Vec::new())
        );
    }
}
