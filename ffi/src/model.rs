//! Models: opening and describing them.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use waterline::internal::{Bytes, Checkpoint};
use waterline::{Device, Model, OpenOptions, Pool, Turns};

use crate::handles::Handles;
use crate::log::{log, wl_log_level};
use crate::params::{self, Tagged};
use crate::pointers::{path, place, put, slice};
use crate::sampling::wl_sampler_params;
use crate::status::{Failure, Outcome, border, wl_status};

/// A model: weights and description, read-only. Any number of sessions share it.
pub struct wl_model {
    _private: [u8; 0],
}

/// The device that a model computes on.
#[repr(C)]
pub enum wl_device {
    /// The first NVIDIA GPU, if there is one, NVRTC is installed, and its free memory is at least 1.25 times the size of the weights; the
    /// CPU otherwise. wl_model_device returns the choice and its reason.
    WL_DEVICE_AUTO = 0,
    /// The CPU.
    WL_DEVICE_CPU = 1,
    /// An NVIDIA GPU. A model's kernels are compiled when its first session is made, and cached on disk.
    WL_DEVICE_CUDA = 2,
}

/// Parameters for opening a model.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_model_params {
    /// sizeof(wl_model_params).
    pub size: u32,
    /// A wl_device; WL_DEVICE_AUTO by default.
    pub device: u32,
    /// The index of the GPU, for WL_DEVICE_CUDA; 0, the first, by default.
    pub gpu: u32,
    /// 1 opens the model even if its files hold tensors that the library does not use; without them it may compute something else. 0 by
    /// default.
    pub allow_unused: u32,
    /// 1 copies the files into memory, so that they may be rewritten or truncated afterwards. 0, the default, maps them: truncating a
    /// mapped file crashes the process.
    pub copy: u32,
    /// 1 loads the model's multi-token prediction (MTP) block, which predicts the token after the next one, for `mtp` of wl_session_params;
    /// an error if the file has none. 0 by default.
    pub mtp: u32,
}

/// A model's description.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_model_info {
    /// sizeof(wl_model_info).
    pub size: u32,
    /// The number of token ids, and of logits.
    pub vocab: u32,
    /// The number of parameters.
    pub parameters: u64,
    /// Bytes of the weights, which are mapped from the file and shared by all sessions.
    pub weight_bytes: u64,
    /// The token that the tokenizer puts before plain text, or -1 without one.
    pub bos: i64,
    /// The token that ends a document, or -1 without one. A generation ends at other tokens too, such as the end of a turn.
    pub eos: i64,
    /// Whether the model has a tokenizer: 1 or 0.
    pub has_tokenizer: u32,
    /// Whether the model has a chat template: 1 or 0.
    pub has_chat_template: u32,
    /// The number of tokens of the longest texts in training, beyond which answers are unreliable; 0 if the files do not state it or the
    /// model's attention does not look back on a complete text.
    pub trained_context: u64,
    /// The tokens that end a generation, `eos` and the chat template's end of a turn among them, valid until the model is freed.
    pub ends: *const u32,
    /// The number of these tokens.
    pub end_count: usize,
}

impl Default for wl_model_info {
    fn default() -> Self {
        wl_model_info {
            size: size_of::<Self>() as u32,
            vocab: 0,
            parameters: 0,
            weight_bytes: 0,
            bos: -1,
            eos: -1,
            has_tokenizer: 0,
            has_chat_template: 0,
            trained_context: 0,
            ends: std::ptr::null(),
            end_count: 0,
        }
    }
}

impl Default for wl_model_params {
    fn default() -> Self {
        wl_model_params {
            size: size_of::<Self>() as u32,
            device: wl_device::WL_DEVICE_AUTO as u32,
            gpu: 0,
            allow_unused: 0,
            copy: 0,
            mtp: 0,
        }
    }
}

// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_model_params {}
// SAFETY: numbers and a pointer that is only written, the size first.
unsafe impl Tagged for wl_model_info {}

/// The object of a model's handle.
pub(crate) struct OpenModel {
    pub model: Arc<Model>,
    pub weight_bytes: u64,
    /// The device of its sessions; `None` for the CPU.
    pub device: Option<Arc<Device>>,
    parameters: u64,
    /// The tokens that end a generation, found when they are first asked for: the template's needs the tokenizer.
    ends: OnceLock<Vec<u32>>,
    name: CString,
    spec: CString,
    notes: CString,
    /// The device of its sessions, as a sentence.
    place: CString,
    /// Thread pools by number of threads, while a session uses them.
    pools: Mutex<HashMap<usize, Weak<Pool>>>,
}

pub(crate) static MODELS: Handles<OpenModel> = Handles::new("model");

impl OpenModel {
    pub fn new(checkpoint: Checkpoint, params: &wl_model_params) -> Outcome<Self> {
        let bytes = checkpoint
            .tensors
            .values()
            .map(|tensor| tensor.data.len() as u64);
        let weight_bytes = bytes.sum();
        let (device, place) = choose_device(params, weight_bytes)?;
        let model = Model::bind(checkpoint)?;
        let spec = model.spec();
        Ok(OpenModel {
            parameters: spec.parameters() as u64,
            ends: OnceLock::new(),
            weight_bytes,
            device,
            place: c_string(&place),
            name: c_string(model.name()),
            notes: c_string(&model.notes().join("\n")),
            spec: c_string(&spec.to_json().to_string()),
            pools: Mutex::default(),
            model,
        })
    }

    /// The tokens that end a generation.
    fn ends(&self) -> &[u32] {
        self.ends.get_or_init(|| {
            let mut ends: Vec<u32> = self.model.ends().collect();
            let template = self.model.chat_template();
            // A template that cannot be used ends no turn.
            let turns = template
                .and_then(|template| Turns::new(Arc::new(template), self.model.tokenizer()?));
            let turn = turns.ok().and_then(|turns| turns.end_token());
            ends.extend(turn.filter(|turn| !ends.contains(turn)));
            ends
        })
    }

    fn info(&self) -> wl_model_info {
        let (model, ends) = (&self.model, self.ends());
        let id = |token: Option<u32>| token.map_or(-1, i64::from);
        wl_model_info {
            size: 0,
            vocab: model.spec().vocab as u32,
            parameters: self.parameters,
            weight_bytes: self.weight_bytes,
            bos: id(model.bos()),
            eos: id(model.eos()),
            has_tokenizer: model.has_tokenizer().into(),
            has_chat_template: model.has_chat_template().into(),
            trained_context: model.trained_context().unwrap_or(0) as u64,
            ends: ends.as_ptr(),
            end_count: ends.len(),
        }
    }

    /// Returns the thread pool that sessions of this model with this number of threads share. With one thread, each session has a separate
    /// pool, which runs on the caller's thread.
    pub fn pool(&self, threads: usize) -> Outcome<Arc<Pool>> {
        if threads == 1 {
            return Ok(Arc::new(Pool::new(1)?));
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&threads).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::new(threads)?);
        pools.insert(threads, Arc::downgrade(&pool));
        Ok(pool)
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Opens a model with `checkpoint` and issues a handle for it.
///
/// # Safety
/// Like the exported functions that call it.
unsafe fn open(
    params: *const wl_model_params,
    model: *mut *mut wl_model,
    checkpoint: impl FnOnce(&OpenOptions) -> Outcome<Checkpoint>,
) -> wl_status {
    border(|| {
        place("the place for the model", model)?;
        // SAFETY: the caller of the exported function passes such a struct or NULL.
        let params = unsafe { params::read("wl_model_params", params) }?;
        let clock = Instant::now();
        let options = OpenOptions {
            allow_unused: params.allow_unused != 0,
            copy: params.copy != 0,
            mtp: params.mtp != 0,
        };
        let open = OpenModel::new(checkpoint(&options)?, &params)?;
        log(wl_log_level::WL_LOG_INFO, || {
            format!(
                "opened {}: {} parameters, {} bytes of weights, {:.0} ms, {}",
                open.model.file(),
                open.parameters,
                open.weight_bytes,
                1e3 * clock.elapsed().as_secs_f64(),
                open.place.to_string_lossy()
            )
        });
        for note in open.model.notes() {
            log(wl_log_level::WL_LOG_INFO, || note.clone());
        }
        // SAFETY: checked above.
        unsafe { put(model, MODELS.add(open)) };
        Ok(())
    })
}

/// Opens the device for a model with this many bytes of weights; `None` is the CPU. Also returns its description.
fn choose_device(
    params: &wl_model_params,
    weight_bytes: u64,
) -> Outcome<(Option<Arc<Device>>, String)> {
    const AUTO: u32 = wl_device::WL_DEVICE_AUTO as u32;
    const CPU: u32 = wl_device::WL_DEVICE_CPU as u32;
    const CUDA: u32 = wl_device::WL_DEVICE_CUDA as u32;
    let gpu = params.gpu;
    if gpu != 0 && params.device != CUDA {
        return Err(Failure::argument(format!(
            "gpu: found {gpu}, expected 0 unless device is WL_DEVICE_CUDA"
        )));
    }
    match params.device {
        CPU => Ok((None, "CPU".into())),
        AUTO => Ok(match Device::automatic(weight_bytes as usize) {
            Ok(device) => {
                let name = device.name().into();
                (Some(device), name)
            }
            Err(reason) => (None, format!("CPU ({reason})")),
        }),
        CUDA => match Device::open(gpu as usize) {
            Ok(device) => {
                let name = device.name().into();
                Ok((Some(device), name))
            }
            Err(error) => Err(Failure::new(
                wl_status::WL_ERROR_UNSUPPORTED,
                format!("CUDA device {gpu}: {error}"),
            )),
        },
        device => Err(Failure::argument(format!(
            "device: found {device}, expected a wl_device (0 to 2)"
        ))),
    }
}

/// Fills `params` with defaults; `size` is sizeof(wl_model_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_params_init(
    params: *mut wl_model_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_model_params", params, size) })
}

/// Opens a GGUF file or a Hugging Face directory. Weights are mapped and used in place, so the file must not be changed while the model
/// lives. `params` may be NULL. Free the model with wl_model_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_open(
    path: *const c_char,
    params: *const wl_model_params,
    model: *mut *mut wl_model,
) -> wl_status {
    let checkpoint = |options: &_| {
        // SAFETY: the caller passes a zero-terminated path.
        Ok(Checkpoint::open_with(
            unsafe { self::path(path) }?,
            options,
        )?)
    };
    // SAFETY: `open` checks both pointers; the caller passes such a struct or NULL, and a destination for the model.
    unsafe { open(params, model, checkpoint) }
}

/// Opens a GGUF file held in memory. The bytes are copied and may be freed afterwards. `params` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_from_memory(
    bytes: *const c_void,
    length: usize,
    params: *const wl_model_params,
    model: *mut *mut wl_model,
) -> wl_status {
    let checkpoint = |options: &_| {
        // SAFETY: the caller passes `length` bytes.
        let bytes = unsafe { slice("bytes", bytes.cast::<u8>(), length) }?;
        Ok(Checkpoint::from_bytes(
            Bytes::copy_from(bytes).map_err(waterline::Error::from)?,
            "the model in memory",
            options,
        )?)
    };
    // SAFETY: `open` checks both pointers; the caller passes such a struct or NULL, and a destination for the model.
    unsafe { open(params, model, checkpoint) }
}

/// Opens the model that is built into the library. `params` may be NULL. Returns WL_ERROR_UNSUPPORTED if the library was built without it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_builtin(
    params: *const wl_model_params,
    model: *mut *mut wl_model,
) -> wl_status {
    // SAFETY: `open` checks both pointers; the caller passes such a struct or NULL, and a destination for the model.
    unsafe { open(params, model, builtin) }
}

#[cfg(feature = "builtin-model")]
fn builtin(options: &OpenOptions) -> Outcome<Checkpoint> {
    /// Tensors in a GGUF file are aligned to 64 bytes from its start.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> =
        &Aligned(*include_bytes!("../../tools/model/waterline-chat.gguf"));
    let bytes = Bytes::from_static(&FILE.0);
    Ok(Checkpoint::from_bytes(
        bytes,
        "the built-in model",
        options,
    )?)
}

#[cfg(not(feature = "builtin-model"))]
fn builtin(_: &OpenOptions) -> Outcome<Checkpoint> {
    Err(Failure::new(
        wl_status::WL_ERROR_UNSUPPORTED,
        "this library was built without a built-in model; open one with wl_model_open",
    ))
}

/// Frees a model; NULL does nothing. Its sessions remain usable, and its memory is released with the last of them. Pointers obtained from
/// the model become invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_free(model: *mut wl_model) -> wl_status {
    border(|| {
        if !model.is_null() {
            MODELS.remove(model)?;
        }
        Ok(())
    })
}

/// Fills `info`, whose size the caller has set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_get_info(
    model: *const wl_model,
    info: *mut wl_model_info,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_model_info", info, model.info()) }
    })
}

/// Fills `params`, whose size the caller has set, with the sampling parameters that sessions on the model have by default: those that its
/// files state, and the defaults of wl_sampler_params for the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_get_sampler(
    model: *const wl_model,
    params: *mut wl_sampler_params,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        let (found, _) = wl_sampler_params::new(&model.model.sampler());
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_sampler_params", params, found) }
    })
}

/// Stores a pointer to the model's name, valid until the model is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_name(
    model: *const wl_model,
    name: *mut *const c_char,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        place("the place for the name", name)?;
        // SAFETY: checked.
        unsafe { put(name, model.name.as_ptr()) };
        Ok(())
    })
}

/// Stores the name of the device that sessions of the model compute on: a GPU's name, or "CPU", followed by the reason in parentheses if
/// the library chose it. It is valid until the model is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_device(
    model: *const wl_model,
    device: *mut *const c_char,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        place("the place for the device", device)?;
        // SAFETY: checked.
        unsafe { put(device, model.place.as_ptr()) };
        Ok(())
    })
}

/// Stores the model's description as JSON: its dimensions, and the mixer of every layer with its hyperparameters. It is valid until the
/// model is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_spec_json(
    model: *const wl_model,
    json: *mut *const c_char,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        place("the place for the description", json)?;
        // SAFETY: checked.
        unsafe { put(json, model.spec.as_ptr()) };
        Ok(())
    })
}

/// Stores remarks about the model's files that a user should see, one sentence per line: unused keys, ids without a token. They are valid
/// until the model is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_model_notes(
    model: *const wl_model,
    notes: *mut *const c_char,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        place("the place for the notes", notes)?;
        // SAFETY: checked.
        unsafe { put(notes, model.notes.as_ptr()) };
        Ok(())
    })
}
