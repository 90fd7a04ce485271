//! Sampling parameters.

use waterline::{Model, SamplerParams};

use crate::params::{self, Tagged};
use crate::pointers::list;
use crate::status::{Outcome, border, wl_status};

/// A number added to a token's logit.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_logit_bias {
    /// The token.
    pub token: u32,
    /// The number added to the logit: -1e9, which forbids the token, to 1e9.
    pub bias: f32,
}

/// Sampling parameters. The steps, in this order: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_sampler_params {
    /// sizeof(wl_sampler_params).
    pub size: u32,
    /// The number of most probable tokens to keep; 0 keeps all. 40 by default.
    pub top_k: u32,
    /// The seed of the random numbers; the same seed gives the same text again. By default each initialization draws a new seed, as in the
    /// program `waterline`. wl_session_get_sampler reads the seed back.
    pub seed: u64,
    /// The divisor of the logits; 0 always chooses the most probable token. 0.7 by default.
    pub temperature: f32,
    /// Keep the most probable tokens up to this sum of probabilities; 1 keeps all. 0.95 by default.
    pub top_p: f32,
    /// Keep tokens at least this many times as probable as the first; 0 keeps all. 0.05 by default.
    pub min_p: f32,
    /// The penalty factor for tokens in the window, 0.001 to 1000; 1, the default, disables it, and larger values discourage repetition.
    pub repetition_penalty: f32,
    /// Subtracted per occurrence in the window, -1e6 to 1e6; 0, the default, disables it.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurs in the window, -1e6 to 1e6; 0, the default, disables it.
    pub presence_penalty: f32,
    /// The number of last tokens that the three penalties cover; 64 by default.
    pub penalty_window: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// The `bias_count` logit biases; they are copied. NULL by default.
    pub bias: *const wl_logit_bias,
    /// The number of logit biases; 0 by default.
    pub bias_count: usize,
}

impl wl_sampler_params {
    /// Returns the parameters in C's layout, and the biases that they will point to.
    pub(crate) fn new(params: &SamplerParams) -> (Self, Vec<wl_logit_bias>) {
        let bias = params.logit_bias.iter();
        let bias = bias.map(|&(token, bias)| wl_logit_bias { token, bias });
        let found = wl_sampler_params {
            size: size_of::<Self>() as u32,
            top_k: params.top_k as u32,
            seed: params.seed,
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            penalty_window: params.penalty_window as u32,
            reserved: 0,
            bias: std::ptr::null(),
            bias_count: 0,
        };
        (found, bias.collect())
    }
}

impl Default for wl_sampler_params {
    fn default() -> Self {
        Self::new(&SamplerParams::default()).0
    }
}

// SAFETY: the struct holds numbers and a pointer that is checked before use, and its size comes first.
unsafe impl Tagged for wl_sampler_params {}

/// Converts the struct at `from` to the library's parameters, or returns those of `model` if it is NULL.
///
/// # Safety
/// `from` points to such a struct with `bias_count` biases, or is NULL.
pub(crate) unsafe fn sampler_params(
    from: *const wl_sampler_params,
    model: Option<&Model>,
) -> Outcome<SamplerParams> {
    if from.is_null() {
        return Ok(model.map_or_else(SamplerParams::default, Model::sampler));
    }
    // SAFETY: `read` checks the size stored in the struct; the caller passes such a struct.
    let params = unsafe { params::read("wl_sampler_params", from) }?;
    params::check_reserved("wl_sampler_params.reserved", params.reserved)?;
    // SAFETY: `list` checks NULL, alignment and length; the caller passes `bias_count` biases.
    let bias = unsafe { list("wl_sampler_params.bias", params.bias, params.bias_count) }?;
    let mut found = SamplerParams::default();
    found.temperature = params.temperature;
    found.top_k = params.top_k as usize;
    found.top_p = params.top_p;
    found.min_p = params.min_p;
    found.repetition_penalty = params.repetition_penalty;
    found.frequency_penalty = params.frequency_penalty;
    found.presence_penalty = params.presence_penalty;
    found.penalty_window = params.penalty_window as usize;
    found.seed = params.seed;
    let bias = bias.iter().map(|bias| (bias.token, bias.bias));
    found.logit_bias.extend(bias);
    Ok(found)
}

/// Fills `params` with defaults; `size` is sizeof(wl_sampler_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_sampler_params_init(
    params: *mut wl_sampler_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_sampler_params", params, size) })
}
