//! The C interface as a C program sees it: its functions, and the layout of the numbers in its
//! structs.

use std::ffi::{c_char, c_int, c_void};

// Links the library, whose functions are declared below in C's types.
use waterline_ffi as _;

pub type Handle = *mut c_void;

pub type Call = i32;

pub const OK: Call = 0;

pub const INTERNAL: Call = 13;

unsafe extern "C" {
    pub fn wl_last_error() -> *const c_char;
    pub fn wl_status_name(status: i32) -> *const c_char;
    pub fn wl_model_params_init(params: *mut u64, size: usize) -> Call;
    pub fn wl_model_open(path: *const c_char, params: *const u64, model: *mut Handle) -> Call;
    pub fn wl_model_from_memory(
        bytes: *const u8,
        length: usize,
        params: *const u64,
        model: *mut Handle,
    ) -> Call;
    pub fn wl_model_builtin(params: *const u64, model: *mut Handle) -> Call;
    pub fn wl_model_free(model: Handle) -> Call;
    pub fn wl_model_get_info(model: Handle, info: *mut u64) -> Call;
    pub fn wl_model_name(model: Handle, name: *mut *const c_char) -> Call;
    pub fn wl_tokenize(
        model: Handle,
        text: *const u8,
        length: usize,
        special: u32,
        tokens: *mut u32,
        room: usize,
        count: *mut usize,
    ) -> Call;
    pub fn wl_detokenize(
        model: Handle,
        tokens: *const u32,
        count: usize,
        bytes: *mut u8,
        room: usize,
        length: *mut usize,
    ) -> Call;
    pub fn wl_token_bytes(
        model: Handle,
        token: u32,
        bytes: *mut *const u8,
        length: *mut usize,
    ) -> Call;
    pub fn wl_sampler_params_init(params: *mut u64, size: usize) -> Call;
    pub fn wl_session_params_init(params: *mut u64, size: usize) -> Call;
    pub fn wl_generate_params_init(params: *mut u64, size: usize) -> Call;
    pub fn wl_plan_model(model: Handle, params: *const u64, plan: *mut u64) -> Call;
    pub fn wl_session_new(model: Handle, params: *const u64, session: *mut Handle) -> Call;
    pub fn wl_session_free(session: Handle) -> Call;
    pub fn wl_session_fork(session: Handle, fork: *mut Handle) -> Call;
    pub fn wl_session_reset(session: Handle) -> Call;
    pub fn wl_session_get_info(session: Handle, info: *mut u64) -> Call;
    pub fn wl_session_set_sampler(session: Handle, params: *const u64) -> Call;
    pub fn wl_session_get_sampler(session: Handle, params: *mut u64) -> Call;
    pub fn wl_feed(session: Handle, tokens: *const u32, count: usize, fed: *mut usize) -> Call;
    pub fn wl_logits(session: Handle, logits: *mut *const f32, count: *mut usize) -> Call;
    pub fn wl_sample(session: Handle, token: *mut u32) -> Call;
    pub fn wl_step(session: Handle, token: *mut u32) -> Call;
    pub fn wl_session_cancel(session: Handle) -> Call;
    pub fn wl_session_clear_cancel(session: Handle) -> Call;
    pub fn wl_batch_new(session: Handle, most: usize, batch: *mut Handle) -> Call;
    pub fn wl_batch_free(batch: Handle) -> Call;
    pub fn wl_batch_step(
        batch: Handle,
        sessions: *const Handle,
        count: usize,
        tokens: *mut u32,
    ) -> Call;
    pub fn wl_batch_feed(
        batch: Handle,
        sessions: *const Handle,
        tokens: *const u32,
        count: usize,
    ) -> Call;
    pub fn wl_generate(
        session: Handle,
        params: *const u64,
        on_text: Option<unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> c_int>,
        user: *mut c_void,
        result: *mut u64,
    ) -> Call;
    pub fn wl_generate_start(session: Handle, params: *const u64) -> Call;
    pub fn wl_generate_next(
        session: Handle,
        text: *mut *const c_char,
        length: *mut usize,
        result: *mut u64,
    ) -> Call;
    pub fn wl_chat_set_messages(
        session: Handle,
        messages: *const [*const c_char; 2],
        count: usize,
    ) -> Call;
    pub fn wl_chat_system(session: Handle, text: *const u8, length: usize) -> Call;
    pub fn wl_chat_say(
        session: Handle,
        message: *const u8,
        length: usize,
        params: *const u64,
        on_text: Option<unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> c_int>,
        user: *mut c_void,
        result: *mut u64,
    ) -> Call;
    pub fn wl_chat_undo(session: Handle) -> Call;
    pub fn wl_chat_tools(session: Handle, json: *const u8, length: usize) -> Call;
    pub fn wl_chat_variable(session: Handle, name: *const c_char, json: *const c_char) -> Call;
    pub fn wl_chat_results(session: Handle, results: *const *const c_char, count: usize) -> Call;
    pub fn wl_chat_parser(session: Handle, parser: *mut Handle) -> Call;
    pub fn wl_chat_parse(
        session: Handle,
        text: *const u8,
        length: usize,
        is_cut: u32,
        parser: *mut Handle,
    ) -> Call;
    pub fn wl_answer_parser_free(parser: Handle) -> Call;
    pub fn wl_answer_push(parser: Handle, text: *const u8, length: usize) -> Call;
    pub fn wl_answer_finish(parser: Handle, is_cut: u32) -> Call;
    pub fn wl_answer_next(parser: Handle, part: *mut u64) -> Call;
    pub fn wl_answer_json(parser: Handle, json: *mut *const c_char, length: *mut usize) -> Call;
    pub fn wl_chat_messages_json(
        session: Handle,
        json: *mut u8,
        room: usize,
        length: *mut usize,
    ) -> Call;
    pub fn wl_state_size(session: Handle, bytes: *mut usize) -> Call;
    pub fn wl_state_write(session: Handle, bytes: *mut u8, room: usize, length: *mut usize)
    -> Call;
    pub fn wl_state_read(session: Handle, bytes: *const u8, length: usize) -> Call;
    pub fn wl_session_mark(session: Handle) -> Call;
    pub fn wl_session_rewind(session: Handle, position: u64) -> Call;
}

/// The offsets and widths in bytes of a struct's numbers, without its pointers.
pub type Fields = &'static [(usize, usize)];

pub const MODEL: (usize, Fields) = (16, &[(0, 4), (4, 4), (8, 4), (12, 4)]);

pub const SAMPLER: (usize, Fields) = (
    64,
    &[
        (0, 4),
        (4, 4),
        (8, 8),
        (16, 4),
        (20, 4),
        (24, 4),
        (28, 4),
        (32, 4),
        (36, 4),
        (40, 4),
        (56, 8),
    ],
);

pub const SESSION: (usize, Fields) = (
    56,
    &[
        (0, 4),
        (4, 4),
        (8, 8),
        (16, 8),
        (24, 8),
        (32, 8),
        (40, 4),
        (44, 4),
    ],
);

pub const GENERATE: (usize, Fields) = (48, &[(0, 4), (4, 4), (8, 8), (24, 8), (40, 8)]);

/// Structs that the library fills: only their size matters.
pub const FILLED: (usize, Fields) = (64, &[(0, 4)]);
