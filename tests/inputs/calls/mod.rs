//! Makes calls of the C interface from bytes, which choose the function, the handles and the contents of the structs. Wild pointers cannot
//! be tested; NULL, misaligned pointers and all numbers can.

mod arguments;
mod interface;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use arguments::{Arguments, NUMBERS};
use interface::*;

/// The maximum number of calls in an input.
const MOST: usize = 48;

/// The number of bytes per call: the function, then its arguments. Zero is always a valid argument.
const WIDTH: usize = 8;

/// The data of a callback: the calling session, and the result to return.
struct Listener {
    session: Handle,
    answer: c_int,
}

unsafe extern "C" fn on_text(text: *const c_char, length: usize, user: *mut c_void) -> c_int {
    // SAFETY: the text has `length` bytes and a zero byte after them; `user` is a Listener that outlives the call.
    let (text, listener) = unsafe { (CStr::from_ptr(text), &*user.cast::<Listener>()) };
    assert!(text.to_str().is_ok() && text.to_bytes().len() <= length);
    // SAFETY: the library checks the handle.
    let busy = unsafe { wl_session_reset(listener.session) };
    assert_ne!(busy, OK, "a session serves one call at a time");
    listener.answer
}

#[derive(Default)]
struct Program {
    models: Vec<Handle>,
    sessions: Vec<Handle>,
    batches: Vec<Handle>,
    freed: Vec<Handle>,
    state: Vec<u8>,
    refused: bool,
    made: usize,
}

const TEXTS: [&[u8]; 6] = [
    b"Hello! My name is Anna.\0",
    b"\0",
    b"\xff\xfe\0",
    b"<|user|>\x1b[2J\0",
    b"a\xc3\0",
    "e\u{301}\u{1f525}\0".as_bytes(),
];

const TOOLS: [&[u8]; 5] = [
    b"[]",
    br#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]"#,
    b"[{}]",
    b"7",
    b"[",
];

const ANSWERS: [&[u8]; 5] = [
    b"<think>hm</think>Yes.",
    b"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 3}}\n</tool_call>",
    b"",
    b"<tool_call>{\"name\": \"f\", \"arg",
    b"\xff<tool_call>",
];

/// Models that are opened once: one with a chat template, and a small one without a tokenizer.
fn models() -> [Handle; 2] {
    static OPEN: OnceLock<[usize; 2]> = OnceLock::new();
    let open = || {
        let (mut builtin, mut small) = (null_mut(), null_mut());
        let path = super::tests().join("models/gdn.gguf");
        let path = format!("{}\0", path.display());
        // SAFETY: NULL parameters mean the defaults, and both calls have a destination for the model.
        unsafe {
            assert_eq!(wl_model_builtin(null(), &mut builtin), OK);
            assert_eq!(wl_model_open(path.as_ptr().cast(), null(), &mut small), OK);
        }
        [builtin, small].map(|model| model.addr())
    };
    OPEN.get_or_init(open).map(std::ptr::without_provenance_mut)
}

impl Program {
    /// Records the status of a call; `good` means that the call may succeed.
    fn note(&mut self, what: &str, status: Call, good: bool) -> bool {
        // SAFETY: both functions always return a C string.
        let (name, said) = unsafe {
            (
                CStr::from_ptr(wl_status_name(status)),
                CStr::from_ptr(wl_last_error()),
            )
        };
        let said = said.to_str().expect("a sentence is UTF-8");
        assert!(
            status != INTERNAL && (0..16).contains(&status),
            "{what}: {status} {said}"
        );
        assert!(
            good || status != OK,
            "{what}: {name:?}, of arguments that cannot be used"
        );
        assert!(
            status == OK || !said.is_empty(),
            "{what}: {name:?} without a sentence"
        );
        self.refused |= status != OK;
        status == OK
    }

    /// Makes one call. The SAFETY comment before the match covers every unsafe block in it.
    #[allow(clippy::undocumented_unsafe_blocks)]
    fn call(&mut self, function: usize, mut a: Arguments) {
        let (mut number, mut pointer, mut token) = (0usize, null::<c_char>(), 0u32);
        let mut made: Handle = null_mut();
        let mut tokens = [1u32, 2, 3, 4, 5, 6, 7, 8];
        let (session, is) = match function {
            0..8 => (null_mut(), true),
            _ => {
                let sessions = std::mem::take(&mut self.sessions);
                let found = a.handle(&sessions, self);
                self.sessions = sessions;
                found
            }
        };
        let (model, is_model) = {
            let models = std::mem::take(&mut self.models);
            let found = match function {
                0..8 => a.handle(&models, self),
                _ => (null_mut(), false),
            };
            self.models = models;
            found
        };
        // SAFETY, of all calls below: the library checks handles; structs have room for every size that the library accepts and hold no
        // pointers but NULL; buffers have the length that is passed.
        match function {
            0 => {
                let params = a.fields(SESSION, Some(wl_session_params_init));
                let (to, placed) = a.place(&mut made);
                let status = unsafe { wl_session_new(model, params.as_ptr(), to) };
                if self.note("wl_session_new", status, is_model && placed) {
                    self.sessions.push(made);
                    self.made += 1;
                }
            }
            1 => {
                let mut info = a.fields(FILLED, None);
                let status = unsafe { wl_model_get_info(model, info.as_mut_ptr()) };
                self.note("wl_model_get_info", status, is_model);
                let (to, placed) = a.place(&mut pointer);
                let status = unsafe { wl_model_name(model, to) };
                self.note("wl_model_name", status, is_model && placed);
            }
            2 => {
                let text = TEXTS[a.next() % TEXTS.len()];
                let room = [0, 8, 3][a.next() % 3];
                let (count, placed) = a.place(&mut number);
                let to = if room == 0 {
                    null_mut()
                } else {
                    tokens.as_mut_ptr()
                };
                let special = a.next() as u32;
                let length = text.len() - 1;
                let status =
                    unsafe { wl_tokenize(model, text.as_ptr(), length, special, to, room, count) };
                self.note("wl_tokenize", status, is_model && placed);
            }
            3 => {
                let mut room = [0u8; 64];
                tokens[3] = [4, u32::MAX, 100_000, 0][a.next() % 4];
                let (from, good) = a.place(tokens.as_mut_ptr());
                let length = [64, 1][a.next() % 2];
                let status = unsafe {
                    wl_detokenize(model, from, 8, room.as_mut_ptr(), length, &mut number)
                };
                self.note("wl_detokenize", status, is_model && good);
                let token = NUMBERS[a.next() % NUMBERS.len()] as u32;
                let mut bytes = null();
                let status = unsafe { wl_token_bytes(model, token, &mut bytes, &mut number) };
                self.note("wl_token_bytes", status, is_model);
            }
            4 => {
                let params = a.fields(SESSION, Some(wl_session_params_init));
                let mut plan = a.fields(FILLED, None);
                let status = unsafe { wl_plan_model(model, params.as_ptr(), plan.as_mut_ptr()) };
                self.note("wl_plan_model", status, is_model);
            }
            5 => {
                let size = [16, 0, 3, 4, 4096, 4097, usize::MAX][a.next() % 7];
                let mut params = a.fields(MODEL, None);
                for init in [
                    wl_model_params_init,
                    wl_sampler_params_init,
                    wl_session_params_init,
                    wl_generate_params_init,
                ] {
                    let status = unsafe { init(params.as_mut_ptr(), size) };
                    self.note("wl_params_init", status, (4..=4096).contains(&size));
                }
            }
            6 => {
                let (kind, cut) = (a.next() % 3, a.next());
                let params = a.fields(MODEL, Some(wl_model_params_init));
                let (to, placed) = a.place(&mut made);
                let status = match kind {
                    0 => unsafe { wl_model_builtin(params.as_ptr(), to) },
                    1 => unsafe { wl_model_open(c"absent.gguf".as_ptr(), params.as_ptr(), to) },
                    _ => {
                        let bytes = &super::read("models/gdn.gguf")[..cut * 100];
                        let (at, length) = (bytes.as_ptr(), bytes.len());
                        unsafe { wl_model_from_memory(at, length, params.as_ptr(), to) }
                    }
                };
                if self.note("wl_model_open", status, kind == 0 && placed) {
                    self.models.push(made);
                }
            }
            7 if !models().contains(&model) => {
                let status = unsafe { wl_model_free(model) };
                // Freeing NULL does nothing.
                if self.note("wl_model_free", status, is_model || model.is_null()) && is_model {
                    self.models.retain(|&other| other != model);
                    self.freed.push(model);
                }
            }
            7 => {}
            8 => {
                tokens[7] = [8, u32::MAX, 1 << 20][a.next() % 3];
                let count = [8, 0, 1, usize::MAX, 1 << 62][a.next() % 5];
                let (from, good) = a.place(tokens.as_mut_ptr());
                let from = if good && count > 8 { null_mut() } else { from };
                let (fed, placed) = a.place(&mut number);
                let misaligned = !placed && !fed.is_null();
                let status = unsafe { wl_feed(session, from, count, fed) };
                let good = is && (count == 0 || good && count <= 8) && !misaligned;
                self.note("wl_feed", status, good);
            }
            9 => {
                let (to, placed) = a.place(&mut token);
                let (what, status) = match a.next() % 2 {
                    0 => ("wl_step", unsafe { wl_step(session, to) }),
                    _ => ("wl_sample", unsafe { wl_sample(session, to) }),
                };
                self.note(what, status, is && placed);
            }
            10 => {
                let mut logits = null();
                let (to, placed) = a.place(&mut logits);
                let status = unsafe { wl_logits(session, to, &mut number) };
                if self.note("wl_logits", status, is && placed) {
                    // SAFETY: this many logits are valid until the session is used again.
                    let logits = unsafe { std::slice::from_raw_parts(logits, number) };
                    assert!(logits.iter().all(|x| x.is_finite()));
                }
            }
            11 => {
                let (to, placed) = a.place(&mut made);
                let status = unsafe { wl_session_fork(session, to) };
                if self.note("wl_session_fork", status, is && placed) {
                    self.sessions.push(made);
                }
            }
            12 => {
                let status = unsafe { wl_session_reset(session) };
                self.note("wl_session_reset", status, is);
            }
            13 => {
                let mut info = a.fields(FILLED, None);
                let status = unsafe { wl_session_get_info(session, info.as_mut_ptr()) };
                self.note("wl_session_get_info", status, is);
                let mut params = a.fields(FILLED, None);
                let status = unsafe { wl_session_get_sampler(session, params.as_mut_ptr()) };
                self.note("wl_session_get_sampler", status, is);
            }
            14 => {
                let params = a.fields(SAMPLER, Some(wl_sampler_params_init));
                let status = unsafe { wl_session_set_sampler(session, params.as_ptr()) };
                self.note("wl_session_set_sampler", status, is);
            }
            15 | 16 => {
                let mut params = a.fields(GENERATE, Some(wl_generate_params_init));
                // Limits the number of tokens, so that the test stays fast.
                params[1] = params[1].min(6);
                let answer = (a.next() % 2) as c_int;
                let mut listener = Listener { session, answer };
                let user = (&raw mut listener).cast();
                let mut result = a.fields(FILLED, None);
                let (params, result) = (params.as_ptr(), result.as_mut_ptr());
                let text = TEXTS[a.next() % TEXTS.len()];
                let status = match function {
                    15 => unsafe { wl_generate(session, params, Some(on_text), user, result) },
                    _ => {
                        let (at, length) = (text.as_ptr(), text.len() - 1);
                        unsafe {
                            wl_chat_say(session, at, length, params, Some(on_text), user, result)
                        }
                    }
                };
                self.note("wl_generate", status, is);
            }
            17 => {
                let mut params = a.fields(GENERATE, Some(wl_generate_params_init));
                params[1] = params[1].min(6);
                let status = unsafe { wl_generate_start(session, params.as_ptr()) };
                self.note("wl_generate_start", status, is);
            }
            18 => {
                let mut result = a.fields(FILLED, None);
                let (to, placed) = a.place(&mut pointer);
                let result = result.as_mut_ptr();
                let status = unsafe { wl_generate_next(session, to, &mut number, result) };
                let good = self.note("wl_generate_next", status, is && placed);
                if good && !pointer.is_null() {
                    // SAFETY: a zero byte follows the piece.
                    assert!(unsafe { CStr::from_ptr(pointer) }.to_str().is_ok());
                }
            }
            19 => {
                let text = TEXTS[a.next() % TEXTS.len()];
                let status = unsafe { wl_chat_system(session, text.as_ptr(), text.len() - 1) };
                self.note("wl_chat_system", status, is);
            }
            20 => {
                let status = unsafe { wl_chat_undo(session) };
                self.note("wl_chat_undo", status, is);
            }
            21 => {
                let mut json = [0u8; 4096];
                let room = [4096, 0, 1][a.next() % 3];
                let (to, placed) = a.place(&mut number);
                let status = unsafe { wl_chat_messages_json(session, json.as_mut_ptr(), room, to) };
                self.note("wl_chat_messages_json", status, is && placed);
            }
            22 => {
                let status = unsafe { wl_state_size(session, &mut number) };
                if self.note("wl_state_size", status, is) {
                    self.state.resize(number, 0);
                    let room = [number, number - 1, 0][a.next() % 3];
                    let at = self.state.as_mut_ptr();
                    let status = unsafe { wl_state_write(session, at, room, &mut number) };
                    if !self.note("wl_state_write", status, room > 0) || room < number {
                        self.state.clear();
                    }
                }
            }
            23 => {
                let (at, value) = (a.next() * 257 + a.next(), a.next());
                let mut state = self.state.clone();
                if value > 0 && !state.is_empty() {
                    let at = at % state.len();
                    state[at] ^= value as u8;
                    if let Some(end) = state.len().checked_sub(4) {
                        let sum = crc32fast::hash(&state[..end]);
                        state[end..].copy_from_slice(&sum.to_le_bytes());
                    }
                }
                let status = unsafe { wl_state_read(session, state.as_ptr(), state.len()) };
                self.note("wl_state_read", status, is && !state.is_empty());
            }
            24 => {
                let status = unsafe { wl_session_mark(session) };
                self.note("wl_session_mark", status, is);
            }
            25 => {
                let position = NUMBERS[a.next() % NUMBERS.len()];
                let status = unsafe { wl_session_rewind(session, position) };
                self.note("wl_session_rewind", status, is);
            }
            26 => {
                let most = [3, 0, 1, 1025, usize::MAX][a.next() % 5];
                let (to, placed) = a.place(&mut made);
                let status = unsafe { wl_batch_new(session, most, to) };
                let good = is && placed && (1..=1024).contains(&most);
                if self.note("wl_batch_new", status, good) {
                    self.batches.push(made);
                }
            }
            27 | 28 => {
                let batches = std::mem::take(&mut self.batches);
                let (batch, is_batch) = a.handle(&batches, self);
                self.batches = batches;
                let others = std::mem::take(&mut self.sessions);
                let (second, is_second) = a.handle(&others, self);
                self.sessions = others;
                let count = 1 + a.next() % 2;
                let both = [session, second];
                let at = both.as_ptr();
                let status = match function {
                    27 => unsafe { wl_batch_step(batch, at, count, tokens.as_mut_ptr()) },
                    _ => unsafe { wl_batch_feed(batch, at, tokens.as_ptr(), count) },
                };
                let twice = session == second;
                let good = is && is_batch && (count == 1 || is_second && !twice);
                self.note("wl_batch_step", status, good);
            }
            29 => {
                let status = unsafe { wl_session_cancel(session) };
                self.note("wl_session_cancel", status, is);
                let status = unsafe { wl_session_clear_cancel(session) };
                self.note("wl_session_clear_cancel", status, is);
            }
            30 => {
                let roles = [c"user", c"assistant", c"system", c"nobody"];
                let role = |n: usize| roles[n % 4].as_ptr();
                let text = |n: usize| TEXTS[n % TEXTS.len()].as_ptr().cast::<c_char>();
                let messages = [
                    [role(a.next()), text(a.next())],
                    [role(a.next() + 1), text(a.next())],
                ];
                let status = unsafe { wl_chat_set_messages(session, messages.as_ptr(), 2) };
                self.note("wl_chat_set_messages", status, is);
            }
            31 => {
                let tools = TOOLS[a.next() % TOOLS.len()];
                let status = unsafe { wl_chat_tools(session, tools.as_ptr(), tools.len()) };
                self.note("wl_chat_tools", status, is);
                let names = [c"reasoning_effort", c"enable_thinking", c"tools", c""];
                let values = [c"null", c"\"low\"", c"true", c"{"];
                let name = names[a.next() % 4].as_ptr();
                let value = values[a.next() % 4].as_ptr();
                let status = unsafe { wl_chat_variable(session, name, value) };
                self.note("wl_chat_variable", status, is);
            }
            32 => {
                let text = ANSWERS[a.next() % ANSWERS.len()];
                let is_cut = [0, 1, 2][a.next() % 3];
                let (to, placed) = a.place(&mut made);
                let (at, length) = (text.as_ptr(), text.len());
                let status = match a.next() % 2 {
                    0 => unsafe { wl_chat_parse(session, at, length, is_cut, to) },
                    _ => unsafe { wl_chat_parser(session, to) },
                };
                if self.note("wl_chat_parse", status, is && placed) {
                    self.read_answer(made, text, is_cut);
                }
            }
            33 => {
                let results = [c"3".as_ptr(), c"\x01".as_ptr(), null()];
                let count = [1, 0, 2, 3][a.next() % 4];
                let status = unsafe { wl_chat_results(session, results.as_ptr(), count) };
                self.note("wl_chat_results", status, is && count < 3);
            }
            _ => {
                let status = unsafe { wl_session_free(session) };
                if self.note("wl_session_free", status, is || session.is_null()) && is {
                    self.sessions.retain(|&other| other != session);
                    self.freed.push(session);
                }
            }
        }
    }
}

impl Program {
    /// Reads an answer with a parser, which is then freed.
    fn read_answer(&mut self, parser: Handle, text: &[u8], is_cut: u32) {
        let (mut json, mut length) = (null::<c_char>(), 0);
        // SAFETY: the library checks handles; the text has the length that is passed, the part the size in its first number.
        unsafe {
            for piece in text.chunks(5) {
                wl_answer_push(parser, piece.as_ptr(), piece.len());
            }
            wl_answer_finish(parser, is_cut);
            let mut part = [0u64; 6];
            part[0] = size_of_val(&part) as u64;
            for _ in 0..9 {
                if wl_answer_next(parser, part.as_mut_ptr()) != OK {
                    break;
                }
            }
            let status = wl_answer_json(parser, &mut json, &mut length);
            if self.note("wl_answer_json", status, true) {
                let json = CStr::from_ptr(json).to_bytes();
                assert_eq!(json.len(), length);
                let message: serde_json::Value = serde_json::from_slice(json).expect("JSON");
                assert_eq!(message["role"], "assistant");
            }
            assert_eq!(wl_answer_parser_free(parser), OK);
            let status = wl_answer_push(parser, text.as_ptr(), text.len());
            assert_ne!(status, OK, "a parser that was freed");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the library checks handles.
        unsafe {
            self.batches.drain(..).for_each(|batch| {
                wl_batch_free(batch);
            });
            self.sessions.drain(..).for_each(|session| {
                wl_session_free(session);
            });
            self.models.drain(2..).for_each(|model| {
                wl_model_free(model);
            });
        }
    }
}

/// Makes the calls; returns whether a session was made and no call was rejected.
pub fn calls(bytes: &[u8]) -> bool {
    let mut program = Program::default();
    program.models.extend(models());
    for call in bytes.chunks(WIDTH).take(MOST) {
        program.call(usize::from(call[0]) % 35, Arguments(&call[1..]));
    }
    program.made > 0 && !program.refused
}

/// Returns valid programs: one that chats, one that reads tokens, and one that steps two sessions together.
pub fn calls_seeds() -> Vec<Vec<u8>> {
    const TALKS: &[usize] = &[
        0, 19, 16, 16, 21, 20, 16, 22, 23, 21, 13, 11, 12, 30, 16, 21, 20, 31, 32, 34, 34,
    ];
    const READS: &[usize] = &[
        5, 0, 14, 8, 10, 9, 24, 8, 25, 8, 22, 9, 9, 23, 10, 15, 17, 18, 18, 29, 13, 1, 2, 3, 4, 34,
    ];
    const TOGETHER: &[usize] = &[0, 8, 11, 26, 27, 28, 9, 27, 12, 8, 27, 28, 6, 7, 34, 34];
    let seed = |functions: &&[usize]| {
        let call = |&function: &usize| {
            let mut call = vec![0; WIDTH];
            call[0] = function as u8;
            // The second session of a step.
            if function == 27 || function == 28 {
                call[3] = 1;
                call[4] = 1;
            }
            call
        };
        functions.iter().flat_map(call).collect()
    };
    [TALKS, READS, TOGETHER].iter().map(seed).collect()
}
