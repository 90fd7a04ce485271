//! The sampling parameters: as flags, and by name in a chat.

use waterline::{Model, SamplerParams};

use crate::error::{Error, Result};
use crate::units::in_words;

/// Options for choosing tokens. A parameter without a flag has the value that the model's files state, or the program's default.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Sampling (the model's files may set other defaults)")]
pub struct SamplingArgs {
    /// Temperature, which divides the logits; 0 always takes the most probable token. [default: 0.7]
    #[arg(long, alias = "temp", value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Always take the most probable token, like --temperature 0.
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,
    /// Keep only the N most probable tokens; 0 keeps all. [default: 40]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Keep the most probable tokens up to this total probability; 1 keeps all. [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens with at least this fraction of the highest probability; 0 keeps all. [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Factor by which recent tokens are penalized; 1 is off. [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Subtracted from a token's logit for each recent occurrence; 0 is off. [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Subtracted from a token's logit once if it occurred recently; 0 is off. [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Number of last tokens that the penalties take into account. [default: 64]
    #[arg(long, alias = "repeat-last-n", value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    penalty_window: Option<usize>,
    /// Seed of the random numbers; by default, or with -1, a new one for each run.
    #[arg(long, short = 's', value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Add V to the logit of token ID; -1e9 forbids it. May be repeated.
    #[arg(long, value_name = "ID=V", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
}

impl SamplingArgs {
    /// The library's parameters for sessions on `model`.
    pub fn params(&self, model: &Model) -> SamplerParams {
        let mut params = model.sampler();
        let set = |flag: Option<f32>, to: &mut f32| *to = flag.unwrap_or(*to);
        let temperature = self.temperature.or(self.greedy.then_some(0.0));
        set(temperature, &mut params.temperature);
        set(self.top_p, &mut params.top_p);
        set(self.min_p, &mut params.min_p);
        set(self.repeat_penalty, &mut params.repetition_penalty);
        set(self.frequency_penalty, &mut params.frequency_penalty);
        set(self.presence_penalty, &mut params.presence_penalty);
        params.top_k = self.top_k.unwrap_or(params.top_k);
        params.penalty_window = self.penalty_window.unwrap_or(params.penalty_window);
        // Integers below 2^53 stay what they are in programs that read numbers as f64.
        params.seed = self.seed.unwrap_or(params.seed >> 11);
        params.logit_bias.clone_from(&self.logit_bias);
        params
    }
}

/// The parameters that [`set`] accepts, named like their flags.
pub const NAMES: [&str; 9] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "frequency-penalty",
    "presence-penalty",
    "penalty-window",
    "seed",
];

/// Sets the parameter of the flag `--key`. The sampler checks the ranges.
pub fn set(params: &mut SamplerParams, key: &str, value: &str) -> Result<()> {
    match key {
        "temperature" => params.temperature = number(key, value)?,
        "top-k" => params.top_k = number(key, value)?,
        "top-p" => params.top_p = number(key, value)?,
        "min-p" => params.min_p = number(key, value)?,
        "repeat-penalty" => params.repetition_penalty = number(key, value)?,
        "frequency-penalty" => params.frequency_penalty = number(key, value)?,
        "presence-penalty" => params.presence_penalty = number(key, value)?,
        "penalty-window" => params.penalty_window = number(key, value)?,
        "seed" => params.seed = number(key, value)?,
        _ => return Err(Error::usage(format!("there is no setting {key:?}"))),
    }
    Ok(())
}

/// The value of the parameter of the flag `--key`.
pub fn get(params: &SamplerParams, key: &str) -> Option<String> {
    Some(match key {
        "temperature" => params.temperature.to_string(),
        "top-k" => params.top_k.to_string(),
        "top-p" => params.top_p.to_string(),
        "min-p" => params.min_p.to_string(),
        "repeat-penalty" => params.repetition_penalty.to_string(),
        "frequency-penalty" => params.frequency_penalty.to_string(),
        "presence-penalty" => params.presence_penalty.to_string(),
        "penalty-window" => params.penalty_window.to_string(),
        "seed" => params.seed.to_string(),
        _ => return None,
    })
}

/// Parses a number; errors name `key`.
pub fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T>
where
    T::Err: std::fmt::Display,
{
    value.parse().map_err(|e: T::Err| {
        let reason = e.to_string();
        let words = in_words(&reason).unwrap_or(&reason);
        Error::usage(format!("{key}: {value:?}: {words}"))
    })
}

/// Parses the whole number of a flag.
fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    let number = text.parse();
    number.map_err(|_| "expected a whole number, 0 or more".into())
}

/// Parses a seed; -1 draws one.
fn seed(text: &str) -> Result<u64, String> {
    match text {
        "-1" => Ok(SamplerParams::default().seed),
        _ => whole(text),
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text
        .split_once('=')
        .ok_or("expected ID=V, such as 17=-1e9")?;
    let id = number("token", id).map_err(|e| e.to_string())?;
    let bias = number("bias", bias).map_err(|e| e.to_string())?;
    Ok((id, bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_can_be_set_and_read_back() {
        let mut params = SamplerParams::default();
        for name in NAMES {
            set(&mut params, name, "1").unwrap();
            assert_eq!(get(&params, name).as_deref(), Some("1"), "{name}");
        }
        assert!(set(&mut params, "temperatur", "1").is_err());
        assert!(set(&mut params, "top-k", "-1").is_err());
    }
}
