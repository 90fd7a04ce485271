//! The sampling parameters that a model's files recommend.

use std::fmt;

use waterline_compute::sampler::SamplerParams;

/// A parameter that files can state, and its names in them.
#[derive(Debug)]
pub struct Parameter {
    /// The name in [`SamplerParams`].
    pub name: &'static str,
    /// The key of a GGUF file, as llama.cpp writes it.
    pub gguf: &'static str,
    /// The key of `generation_config.json`.
    pub json: &'static str,
    /// Whether the parameter is a whole number.
    pub whole: bool,
    set: fn(&mut SamplerParams, f32),
}

/// Number of last tokens for a window over the complete context: as many as a session remembers by default.
const WHOLE_WINDOW: usize = 4096;

/// The index of the temperature in [`PARAMETERS`].
pub const TEMPERATURE: usize = 0;

/// The parameters that files can state.
pub const PARAMETERS: [Parameter; 6] = [
    Parameter {
        name: "temperature",
        gguf: "general.sampling.temp",
        json: "temperature",
        whole: false,
        set: |params, value| params.temperature = value,
    },
    Parameter {
        name: "top_k",
        gguf: "general.sampling.top_k",
        json: "top_k",
        whole: true,
        // llama.cpp and transformers keep all tokens at 0 or less.
        set: |params, value| params.top_k = value.max(0.0) as usize,
    },
    Parameter {
        name: "top_p",
        gguf: "general.sampling.top_p",
        json: "top_p",
        whole: false,
        set: |params, value| params.top_p = value,
    },
    Parameter {
        name: "min_p",
        gguf: "general.sampling.min_p",
        json: "min_p",
        whole: false,
        set: |params, value| params.min_p = value,
    },
    Parameter {
        name: "repetition_penalty",
        gguf: "general.sampling.penalty_repeat",
        json: "repetition_penalty",
        whole: false,
        set: |params, value| params.repetition_penalty = value,
    },
    Parameter {
        name: "penalty_window",
        gguf: "general.sampling.penalty_last_n",
        json: "penalty_last_n",
        whole: true,
        set: |params, value| {
            params.penalty_window = if value < 0.0 {
                WHOLE_WINDOW
            } else {
                value as usize
            }
        },
    },
];

/// The sampling parameters that a model's files state: indices of [`PARAMETERS`] and values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling(Vec<(usize, f32)>);

impl Sampling {
    /// Sets the parameter with this index. A value out of range is not set; returns the reason, part of a sentence for users.
    pub fn set(&mut self, index: usize, value: f32) -> Result<(), String> {
        let parameter = &PARAMETERS[index];
        if parameter.whole && value.fract() != 0.0 {
            return Err(format!("found {value}, expected a whole number"));
        }
        let mut params = SamplerParams::default();
        (parameter.set)(&mut params, value);
        params.validate().map_err(|error| error.to_string())?;
        self.0.retain(|(other, _)| *other != index);
        self.0.push((index, value));
        Ok(())
    }

    /// The parameters and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Parameter, f32)> {
        let stated = self.0.iter();
        stated.map(|&(index, value)| (&PARAMETERS[index], value))
    }

    /// Returns `params` with the values of the files.
    pub fn over(&self, mut params: SamplerParams) -> SamplerParams {
        for (parameter, value) in self.iter() {
            (parameter.set)(&mut params, value);
        }
        params
    }
}

/// Writes `temperature 0.6, top_k 20`; nothing if the files state no parameter.
impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stated = self.iter();
        let stated = stated.map(|(parameter, value)| format!("{} {value}", parameter.name));
        f.write_str(&stated.collect::<Vec<_>>().join(", "))
    }
}
