/*
 * waterline: recurrent and hybrid language models in fixed memory.
 *
 * Every function but the five that return a version, a name, a sentence or a number of errno.h returns a wl_status. When it is not WL_OK,
 * wl_last_error() says in a sentence what was wrong, on the thread that called.
 *
 * Handles. wl_model, wl_session, wl_batch, wl_store and wl_answer_parser are names of things inside the library, not
 * addresses: NULL, a pointer from elsewhere and a handle that was freed are all found out and give WL_ERROR_HANDLE. All
 * other pointers are believed.
 *
 * Structs that are passed in or filled begin with their size, so that a program built with an older header works with a
 * newer library and vice versa. The function wl_..._params_init fills one with defaults; NULL means defaults
 * as well. Set the size of a struct to be filled before the call.
 *
 * Text is UTF-8, given as a pointer and a length in bytes. WL_ZERO_TERMINATED as the length means: up to the zero byte.
 *
 * Stack. Reading tokens, generating and sampling need no more than 64 KiB of the caller's stack, whatever the model, so a
 * thread of 128 KiB is enough. Opening a model, tokenizing text and applying a chat template need a system's usual stack.
 *
 * Threads. A call on a model may be made from any thread at any time. A session serves one call at a time: a second
 * one that comes meanwhile from another thread, or from a callback of the first, returns WL_ERROR_BUSY at once and
 * changes nothing. Exceptions are wl_session_cancel, wl_session_clear_cancel and wl_session_free, which may come at any
 * time. A session may move between threads. An answer parser serves one call at a time like a session. Functions with
 * other rules for threads say so.
 */


#ifndef WATERLINE_H
#define WATERLINE_H

#include <stddef.h>
#include <stdint.h>

// As a length of text: the text ends at its first zero byte.
#define WL_ZERO_TERMINATED ((size_t)-1)


// The version of this interface. It increases with every change that breaks programs built earlier, and is part of the library's soname.
#define WL_ABI_VERSION 1

// The result of a call. Programs should treat any unlisted number as an error.
typedef enum {
  // Success.
  WL_OK = 0,
  // An argument is NULL, out of range or not UTF-8, or a struct has an invalid size.
  WL_ERROR_ARGUMENT = 1,
  // A handle is NULL, was freed, or did not come from this library.
  WL_ERROR_HANDLE = 2,
  // Another call on this session has not returned yet.
  WL_ERROR_BUSY = 3,
  // The result does not fit; the room it needs was written. Nothing else changed.
  WL_ERROR_ROOM = 4,
  // The operating system refused a file operation.
  WL_ERROR_IO = 5,
  // The file is not a model or is damaged, or the model computes a value that is not finite.
  WL_ERROR_MODEL = 6,
  // The function is not available in this build, on this device or for this model.
  WL_ERROR_UNSUPPORTED = 7,
  // The model has no tokenizer or no chat template, or they reject the text.
  WL_ERROR_TEXT = 8,
  // The session's context cannot hold the tokens. Nothing was read.
  WL_ERROR_CONTEXT = 9,
  // A saved state is damaged, or belongs to another model or other session parameters. The session is unchanged.
  WL_ERROR_STATE = 10,
  // The session cannot go back to that position. The session is unchanged.
  WL_ERROR_REWIND = 11,
  // wl_session_cancel ended the call. The session stopped after a complete token and can continue.
  WL_CANCELLED = 12,
  // A defect in the library. A session that was in use can only be freed.
  WL_ERROR_INTERNAL = 13,
  // The device's memory is full, or the device was lost. Sessions on a lost device can only be freed; a state that was saved earlier can
  // be read into a session elsewhere.
  WL_ERROR_DEVICE = 14,
  // The system refused memory or a thread. The call changed nothing.
  WL_ERROR_MEMORY = 15,
} wl_status;

// The importance of a log message.
typedef enum {
  // A defect of the library.
  WL_LOG_ERROR = 0,
  // Opened models, the form of a session's steps on a GPU (one kernel, or a graph and the reason), and files of a store that were
  // skipped.
  WL_LOG_INFO = 1,
  // New sessions.
  WL_LOG_DEBUG = 2,
} wl_log_level;

// The device that a model computes on.
typedef enum {
  // The first NVIDIA GPU, if there is one, NVRTC is installed, and its free memory is at least 1.25 times the size of the weights; the
  // CPU otherwise. wl_model_device returns the choice and its reason.
  WL_DEVICE_AUTO = 0,
  // The CPU.
  WL_DEVICE_CPU = 1,
  // An NVIDIA GPU. A model's kernels are compiled when its first session is made, and cached on disk.
  WL_DEVICE_CUDA = 2,
} wl_device;

// The kind of constraint on answers.
typedef enum {
  // No constraint.
  WL_CONSTRAINT_NONE = 0,
  // Any JSON object.
  WL_CONSTRAINT_JSON_OBJECT = 1,
  // JSON that fits a schema.
  WL_CONSTRAINT_JSON_SCHEMA = 2,
  // Text that matches a regular expression completely.
  WL_CONSTRAINT_REGEX = 3,
  // Text of a grammar in llguidance's variant of Lark.
  WL_CONSTRAINT_LARK = 4,
} wl_constraint;

// The format in which attention stores keys and values.
typedef enum {
  // 16-bit floats.
  WL_CACHE_F16 = 0,
  // 32-bit floats.
  WL_CACHE_F32 = 1,
} wl_cache;

// The behavior when the context that attention looks back on is full.
typedef enum {
  // The call returns WL_ERROR_CONTEXT, and nothing is read.
  WL_FULL_STOP = 0,
  // Attention forgets the oldest tokens except the first `keep`; recurrent layers continue as before. Nothing is read again.
  WL_FULL_SHIFT = 1,
  // The first `keep` tokens and the newest ones, as many as fill half of the remaining context, are read again; everything else is
  // forgotten.
  WL_FULL_COMPACT = 2,
} wl_full;

// The reason why a generation ended.
typedef enum {
  // The model ended its answer.
  WL_FINISH_END = 0,
  // A stop text was generated.
  WL_FINISH_STOP = 1,
  // The maximum number of tokens was generated.
  WL_FINISH_LENGTH = 2,
  // wl_session_cancel was called.
  WL_FINISH_CANCELLED = 3,
  // The callback stopped it.
  WL_FINISH_CALLBACK = 4,
} wl_finish;

// How the final states of a text become its vector.
typedef enum {
  // As the model's files state it.
  WL_POOLING_MODEL = 0,
  // The mean of all states.
  WL_POOLING_MEAN = 1,
  // The state of the first token.
  WL_POOLING_CLS = 2,
  // The state of the last token.
  WL_POOLING_LAST = 3,
} wl_pooling;

// The kind of a part of an answer.
typedef enum {
  // No part: more text is needed.
  WL_PART_NONE = 0,
  // More of the content.
  WL_PART_CONTENT = 1,
  // More of the model's thoughts.
  WL_PART_REASONING = 2,
  // A tool call begins: `text` is the function's name, `id` the call's id.
  WL_PART_CALL_BEGINS = 3,
  // `id` is the id of the call, which the model wrote after the name.
  WL_PART_CALL_ID = 4,
  // More of the call's arguments, which are JSON.
  WL_PART_CALL_ARGUMENTS = 5,
  // The call is complete. A call that a limit cut has no such part.
  WL_PART_CALL_ENDS = 6,
  // All content so far was a thought that no tag opened.
  WL_PART_CONTENT_WAS_REASONING = 7,
} wl_part_kind;

// Splits the text of one answer into parts.
typedef struct wl_answer_parser wl_answer_parser;

// Working memory to step sessions of one model together.
typedef struct wl_batch wl_batch;

// A model: weights and description, read-only. Any number of sessions share it.
typedef struct wl_model wl_model;

// One conversation or text, with the state of the model that has read it. All its memory is allocated when it is made.
typedef struct wl_session wl_session;

// A store of checkpoints: states at positions of token sequences, shared by sessions. A history that grew, was edited, lost its thinking
// text, was forked or comes from another process continues from the longest checkpoint that is a prefix of it.
typedef struct wl_store wl_store;

// Receives a message: a sentence without a line end, valid during the call. It may be called from any thread, and from several threads at
// once. It must return normally: no exceptions, no longjmp.
typedef void (*wl_log_fn)(wl_log_level level, const char *message, void *user);

// Parameters for opening a model.
typedef struct {
  // sizeof(wl_model_params).
  uint32_t size;
  // A wl_device; WL_DEVICE_AUTO by default.
  uint32_t device;
  // The index of the GPU, for WL_DEVICE_CUDA; 0, the first, by default.
  uint32_t gpu;
  // 1 opens the model even if its files hold tensors that the library does not use; without them it may compute something else. 0 by
  // default.
  uint32_t allow_unused;
  // 1 copies the files into memory, so that they may be rewritten or truncated afterwards. 0, the default, maps them: truncating a
  // mapped file crashes the process.
  uint32_t copy;
  // 1 loads the model's multi-token prediction (MTP) block, which predicts the token after the next one, for `mtp` of wl_session_params;
  // an error if the file has none. 0 by default.
  uint32_t mtp;
} wl_model_params;

// A model's description.
typedef struct {
  // sizeof(wl_model_info).
  uint32_t size;
  // The number of token ids, and of logits.
  uint32_t vocab;
  // The number of parameters.
  uint64_t parameters;
  // Bytes of the weights, which are mapped from the file and shared by all sessions.
  uint64_t weight_bytes;
  // The token that the tokenizer puts before plain text, or -1 without one.
  int64_t bos;
  // The token that ends a document, or -1 without one. A generation ends at other tokens too, such as the end of a turn.
  int64_t eos;
  // Whether the model has a tokenizer: 1 or 0.
  uint32_t has_tokenizer;
  // Whether the model has a chat template: 1 or 0.
  uint32_t has_chat_template;
  // The number of tokens of the longest texts in training, beyond which answers are unreliable; 0 if the files do not state it or the
  // model's attention does not look back on a complete text.
  uint64_t trained_context;
  // The tokens that end a generation, `eos` and the chat template's end of a turn among them, valid until the model is freed.
  const uint32_t *ends;
  // The number of these tokens.
  size_t end_count;
} wl_model_info;

// A number added to a token's logit.
typedef struct {
  // The token.
  uint32_t token;
  // The number added to the logit: -1e9, which forbids the token, to 1e9.
  float bias;
} wl_logit_bias;

// Sampling parameters. The steps, in this order: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
typedef struct {
  // sizeof(wl_sampler_params).
  uint32_t size;
  // The number of most probable tokens to keep; 0 keeps all. 40 by default.
  uint32_t top_k;
  // The seed of the random numbers; the same seed gives the same text again. By default each initialization draws a new seed, as in the
  // program `waterline`. wl_session_get_sampler reads the seed back.
  uint64_t seed;
  // The divisor of the logits; 0 always chooses the most probable token. 0.7 by default.
  float temperature;
  // Keep the most probable tokens up to this sum of probabilities; 1 keeps all. 0.95 by default.
  float top_p;
  // Keep tokens at least this many times as probable as the first; 0 keeps all. 0.05 by default.
  float min_p;
  // The penalty factor for tokens in the window, 0.001 to 1000; 1, the default, disables it, and larger values discourage repetition.
  float repetition_penalty;
  // Subtracted per occurrence in the window, -1e6 to 1e6; 0, the default, disables it.
  float frequency_penalty;
  // Subtracted once if the token occurs in the window, -1e6 to 1e6; 0, the default, disables it.
  float presence_penalty;
  // The number of last tokens that the three penalties cover; 64 by default.
  uint32_t penalty_window;
  // Reserved; must be 0.
  uint32_t reserved;
  // The `bias_count` logit biases; they are copied. NULL by default.
  const wl_logit_bias *bias;
  // The number of logit biases; 0 by default.
  size_t bias_count;
} wl_sampler_params;

// Parameters of a new store.
typedef struct {
  // sizeof(wl_store_params).
  uint32_t size;
  // The number of positions between checkpoints of a long prompt, which is read in chunks that end at them; 0, the default, means 256 on
  // a CPU and one chunk on a GPU, which reads long prompts slowly in shorter chunks.
  uint32_t grid;
  // The maximum number of bytes in memory; by default a quarter of the machine's memory, but at most 8 GiB.
  uint64_t bytes;
  // A directory that also holds the checkpoints, for other processes and later runs; NULL, the default, means none. It is created if it
  // does not exist; only its owner can read its files.
  const char *directory;
  // The maximum number of bytes of files in the directory; 4 GiB by default.
  uint64_t directory_bytes;
} wl_store_params;

// The contents of a store and its work so far.
typedef struct {
  // sizeof(wl_store_stats).
  uint32_t size;
  // Reserved; always 0.
  uint32_t reserved;
  // The number of checkpoints in memory.
  uint64_t checkpoints;
  // The bytes of these checkpoints, never more than the limit.
  uint64_t bytes;
  // The number of checkpoints in the directory.
  uint64_t files;
  // The bytes of these files.
  uint64_t file_bytes;
  // The number of checkpoints evicted from memory.
  uint64_t evicted;
  // The number of tokens of histories that were not read again.
  uint64_t reused_tokens;
  // The number of tokens of histories that were read.
  uint64_t read_tokens;
} wl_store_stats;

// Parameters of a new session.
typedef struct {
  // sizeof(wl_session_params).
  uint32_t size;
  // The number of threads that compute, the caller's included, 1 to 1024; 0, the default, means one per physical core. Sessions of one
  // model with the same number share their threads and take turns. With 1, each session computes on its caller's thread, and sessions
  // run in parallel.
  uint32_t threads;
  // The number of tokens that full attention can look back on; models without full attention have no such limit. 4096 by default.
  size_t context;
  // The number of recent tokens that are remembered, for penalties and wl_session_rewind. 4096 by default.
  size_t history;
  // The maximum number of tokens read at once, at most 65536; 0, the default, selects a value for the device: 256 on the CPU, 2048 on a
  // GPU.
  size_t chunk;
  // The number of states that wl_session_mark keeps, each as large as the session's; 0 by default.
  size_t marks;
  // A wl_cache; WL_CACHE_F16 by default.
  uint32_t cache;
  // A wl_full: what happens when the context is full; WL_FULL_STOP by default.
  uint32_t on_full;
  // Sampling parameters, which are copied; NULL, the default, means those of wl_model_get_sampler.
  const wl_sampler_params *sampler;
  // 1 makes the bits of each token depend only on the tokens before it and the kind of device, not on chunks, batches or threads;
  // prompts are then read more slowly. 0 by default.
  uint32_t exact;
  // The number of first tokens that remain when the context is full, less than half of it. In a conversation its instructions remain
  // too. 4 by default.
  uint32_t keep;
  // The store of checkpoints for wl_session_read_history and conversations; NULL, the default, means none. The session keeps the parts
  // of the store that it needs alive.
  const wl_store *store;
  // The maximum number of tokens that a generation drafts by looking up what followed the last tokens earlier, up to 64; 0, the default,
  // disables this. The text is the same without drafts; drafts make generation faster and need the memory of one more state.
  uint32_t lookup;
  // The maximum number of tokens that a generation drafts with the model's MTP block, in place of `lookup`; 0, the default, disables
  // this. The model must have been opened with `mtp` of wl_model_params.
  uint32_t mtp;
} wl_session_params;

// The memory of a model and a session, in bytes. None of it grows while tokens are read.
typedef struct {
  // sizeof(wl_plan).
  uint32_t size;
  // The number of threads that compute.
  uint32_t threads;
  // The weights, which are mapped from the file and shared by all sessions.
  uint64_t weight_bytes;
  // The session's state.
  uint64_t state_bytes;
  // The session's working memory on the CPU, and its marks. wl_session_get_info includes the working memory on a GPU.
  uint64_t work_bytes;
} wl_plan;

// The position and size of a session.
typedef struct {
  // sizeof(wl_session_info).
  uint32_t size;
  // The number of threads that compute.
  uint32_t threads;
  // The number of tokens read so far.
  uint64_t position;
  // Bytes of the state.
  uint64_t state_bytes;
  // Bytes of working memory and marks.
  uint64_t work_bytes;
  // The number of tokens drafted since the session was made.
  uint64_t drafted;
  // The number of drafted tokens that were accepted.
  uint64_t accepted;
} wl_session_info;

// Parameters of vectors.
typedef struct {
  // sizeof(wl_embed_params).
  uint32_t size;
  // A wl_pooling; WL_POOLING_MODEL by default.
  uint32_t pooling;
  // 1 for vectors of unit length, 0 for others; -1, the default, as the model's files state it.
  int32_t normalize;
  // Reserved; must be 0.
  uint32_t reserved;
  // The length to which vectors are cut, which the model's files must allow; 0, the default, does not cut them.
  size_t dimensions;
} wl_embed_params;

// Called after every `chunk` tokens of a prompt with the progress: `read` of `total` tokens. Returns 0 to continue, anything else to
// cancel the call. It runs on the caller's thread; other calls on the session return WL_ERROR_BUSY. It must return normally: no
// exceptions, no longjmp.
typedef int (*wl_progress_fn)(uint64_t read, uint64_t total, void *user);

// Receives a token that was generated and read, its log-probability, and the text that it completes. The log-probability is the model's
// alone, before bias, penalties and temperature (NaN unless `logprobs` is 1). The text is `length` bytes of UTF-8 with a zero byte after
// them, valid during the call; it is empty while a character or the beginning of a stop text is incomplete. Returns 0 to continue,
// anything else to stop after this token. Otherwise like wl_text_fn.
typedef int (*wl_token_fn)(uint32_t token, float logprob, const char *text, size_t length, void *user);

// Called with the `count` logits before each choice; its changes apply to that choice only. Minus infinity forbids a token. A GPU must
// then copy all logits of every token to the host. It must return normally: no exceptions, no longjmp.
typedef void (*wl_logits_fn)(float *logits, size_t count, void *user);

// Parameters of a generation.
typedef struct {
  // sizeof(wl_generate_params).
  uint32_t size;
  // 1 continues after the token that ends an answer; 0 by default.
  uint32_t ignore_end;
  // The maximum number of tokens; 1024 by default.
  size_t max_tokens;
  // Zero-terminated texts that end the generation and are not part of it; NULL by default.
  const char *const *stop;
  // The number of stop texts; 0 by default.
  size_t stop_count;
  // Tokens that end the generation in addition to the model's; NULL by default.
  const uint32_t *stop_tokens;
  // The number of stop tokens; 0 by default.
  size_t stop_token_count;
  // 1 computes the log-probability of each token for `on_token`; the session then does not draft. 0 by default.
  uint32_t logprobs;
  // Reserved; must be 0.
  uint32_t reserved;
  // Called for each token; NULL by default.
  wl_token_fn on_token;
  // Called before each token is chosen; the session then does not draft. NULL by default.
  wl_logits_fn on_logits;
  // Passed to `on_token` and `on_logits`, so it must live as long as the generation; NULL by default.
  void *user;
  // The maximum number of tokens of the thought with which an answer begins; its closing tag follows them, and the answer. -1, the
  // default, sets no limit; 0 closes the thought at once.
  int64_t thought_tokens;
} wl_generate_params;

// Receives a piece of text: `length` bytes of UTF-8, complete characters, with a zero byte after them, valid during the call. Returns 0 to
// continue, anything else to stop. It may cancel or free the session; other calls on the session return WL_ERROR_BUSY. It must return
// normally: no exceptions, no longjmp.
typedef int (*wl_text_fn)(const char *text, size_t length, void *user);

// The result of a generation.
typedef struct {
  // sizeof(wl_generate_result).
  uint32_t size;
  // A wl_finish.
  uint32_t finish;
  // The number of generated tokens, including a token that ends the answer.
  uint64_t tokens;
  // The number of tokens of the message that were read first; 0 for a generation without a message.
  uint64_t prompt_tokens;
  // The seconds that reading the message took.
  double prompt_seconds;
  // The seconds that generating took, without the time between calls.
  double seconds;
  // The number of tokens of the conversation that were not read again.
  uint64_t reused_tokens;
} wl_generate_result;

// A message of a conversation. Both texts are zero-terminated.
typedef struct {
  // "system", "user", "assistant", or another role that the model's template accepts.
  const char *role;
  // The text.
  const char *content;
} wl_message;

// A part of an answer. Its texts have a zero byte after them and are valid until the next call on the parser.
typedef struct {
  // sizeof(wl_answer_part).
  uint32_t size;
  // A wl_part_kind.
  uint32_t kind;
  // The number of the call, from 0; for other parts, of the last call before them.
  size_t call;
  // The text of the part; NULL if its kind has none.
  const char *text;
  // The number of bytes of `text`.
  size_t length;
  // The id of a call as the model wrote it, zero-terminated; NULL if there is none.
  const char *id;
} wl_answer_part;

// A conversation to be rendered. The texts are zero-terminated JSON.
typedef struct {
  // sizeof(wl_render_params).
  uint32_t size;
  // 1, the default, appends the beginning of the next answer; 0 does not.
  uint32_t add_generation_prompt;
  // The messages, as for wl_session_set_messages.
  const char *messages;
  // The functions that the model may call, as for wl_chat_tools; NULL, the default, means none.
  const char *tools;
  // An object with more variables of the template, such as {"enable_thinking": false, "reasoning_effort": "low"}; NULL, the default, means
  // none.
  const char *variables;
} wl_render_params;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the WL_ABI_VERSION that the library was built with, to compare with the header's.
uint32_t wl_abi_version(void);

// Returns the library's version, such as "0.1.0".
const char *wl_version(void);

// Returns a sentence with the reason why the last failed call on this thread did not return WL_OK, or "" if no call has failed. It is
// valid until the next failed call on this thread.
const char *wl_last_error(void);

// Returns the errno.h number, such as ENOENT, of the file operation that the system refused in the last failed call on this thread; 0 if
// that call failed for another reason or the system gives no number.
int32_t wl_last_os_error(void);

// Returns the name of a status, such as "WL_ERROR_IO", or "unknown status" for other numbers. Never NULL, and always valid.
const char *wl_status_name(int32_t status);

// Sends messages of `level`, a wl_log_level, and of more important levels to `function`; NULL disables logging. Without a function the
// library writes no messages anywhere. The setting applies to the whole process. It may be changed from any thread but not from `function`
// itself, which gives WL_ERROR_BUSY. When the call returns, the previous function is no longer running.
wl_status wl_set_log(uint32_t level,
                     wl_log_fn function,
                     void *user);

// Fills `params` with defaults; `size` is sizeof(wl_model_params).
wl_status wl_model_params_init(wl_model_params *params, size_t size);

// Opens a GGUF file or a Hugging Face directory. Weights are mapped and used in place, so the file must not be changed while the model
// lives. `params` may be NULL. Free the model with wl_model_free.
wl_status wl_model_open(const char *path,
                        const wl_model_params *params,
                        wl_model **model);

// Opens a GGUF file held in memory. The bytes are copied and may be freed afterwards. `params` may be NULL.
wl_status wl_model_from_memory(const void *bytes, size_t length, const wl_model_params *params, wl_model **model);

// Opens the model that is built into the library. `params` may be NULL. Returns WL_ERROR_UNSUPPORTED if the library was built without it.
wl_status wl_model_builtin(const wl_model_params *params,
                           wl_model **model);

// Frees a model; NULL does nothing. Its sessions remain usable, and its memory is released with the last of them. Pointers obtained from
// the model become invalid.
wl_status wl_model_free(wl_model *model);

// Fills `info`, whose size the caller has set.
wl_status wl_model_get_info(const wl_model *model, wl_model_info *info);

// Fills `params`, whose size the caller has set, with the sampling parameters that sessions on the model have by default: those that its
// files state, and the defaults of wl_sampler_params for the others.
wl_status wl_model_get_sampler(const wl_model *model,
                               wl_sampler_params *params);

// Stores a pointer to the model's name, valid until the model is freed.
wl_status wl_model_name(const wl_model *model, const char **name);

// Stores the name of the device that sessions of the model compute on: a GPU's name, or "CPU", followed by the reason in parentheses if
// the library chose it. It is valid until the model is freed.
wl_status wl_model_device(const wl_model *model,
                          const char **device);

// Stores the model's description as JSON: its dimensions, and the mixer of every layer with its hyperparameters. It is valid until the
// model is freed.
wl_status wl_model_spec_json(const wl_model *model,
                             const char **json);

// Stores remarks about the model's files that a user should see, one sentence per line: unused keys, ids without a token. They are valid
// until the model is freed.
wl_status wl_model_notes(const wl_model *model,
                         const char **notes);

// Writes the tokens of `text`, `length` bytes of UTF-8, to `tokens`, which has room for `room`, and their number to `count`. Returns
// WL_ERROR_ROOM if they do not fit; with `tokens` NULL and `room` 0 only the number is written. No token is added before or after the
// text. If `special` is not 0, the names of special tokens in the text become those tokens, as in a template; otherwise they are ordinary
// characters, as they should be in user input.
wl_status wl_tokenize(const wl_model *model,
                      const char *text,
                      size_t length,
                      uint32_t special,
                      uint32_t *tokens,
                      size_t room,
                      size_t *count);

// Writes the exact bytes of `tokens` and a zero byte to `bytes`, which has room for `room`, and the number of bytes without the zero byte
// to `length`. The bytes may begin or end inside a character. Returns WL_ERROR_ROOM if bytes and zero byte do not fit; with `bytes` NULL
// and `room` 0 only the length is written.
wl_status wl_detokenize(const wl_model *model,
                        const uint32_t *tokens,
                        size_t count,
                        char *bytes,
                        size_t room,
                        size_t *length);

// Stores a pointer to the exact bytes of a token, possibly part of a character, without a zero byte. They are valid until the model is
// freed.
wl_status wl_token_bytes(const wl_model *model,
                         uint32_t token,
                         const char **bytes,
                         size_t *length);

// Fills `params` with defaults; `size` is sizeof(wl_sampler_params).
wl_status wl_sampler_params_init(wl_sampler_params *params, size_t size);

// Fills `params` with defaults; `size` is sizeof(wl_store_params).
wl_status wl_store_params_init(wl_store_params *params, size_t size);

// Makes a store, with the checkpoints of its directory if it has one. `params` may be NULL. Pass the store to sessions, of any models, as
// `store` of wl_session_params. Free it with wl_store_free.
wl_status wl_store_new(const wl_store_params *params,
                       wl_store **store);

// Frees a store; NULL does nothing. Sessions that use the store keep it alive. Its last user waits until its directory is written.
wl_status wl_store_free(wl_store *store);

// Fills `stats`, whose size the caller has set.
wl_status wl_store_get_stats(const wl_store *store, wl_store_stats *stats);

// Removes all checkpoints, including those in the directory.
wl_status wl_store_clear(wl_store *store);

// Waits until all pending writes to the directory are done.
wl_status wl_store_flush(wl_store *store);

// Fills `params` with defaults; `size` is sizeof(wl_session_params).
wl_status wl_session_params_init(wl_session_params *params, size_t size);

// Fills `plan`, whose size the caller has set, with the memory that the model in a file and a session on it would need. Only the file's
// header and small tensors are read, and the file is closed again. `params` may be NULL.
wl_status wl_plan_file(const char *path,
                       const wl_session_params *params,
                       wl_plan *plan);

// Like wl_plan_file, for an open model.
wl_status wl_plan_model(const wl_model *model, const wl_session_params *params, wl_plan *plan);

// Makes a session on `model`. `params` may be NULL. Free it with wl_session_free. The session keeps the parts of the model that it needs
// alive.
wl_status wl_session_new(const wl_model *model,
                         const wl_session_params *params,
                         wl_session **session);

// Frees a session; NULL does nothing. May be called at any time from any thread: a call that is using the session is cancelled, and the
// memory is released when that call returns.
wl_status wl_session_free(wl_session *session);

// Makes a second session in the same state, conversation included, independent of the first from then on. Free it with wl_session_free.
wl_status wl_session_fork(wl_session *session,
                          wl_session **fork);

// Forgets everything that was read or said. Sampling parameters are kept; random numbers restart from the seed.
wl_status wl_session_reset(wl_session *session);

// Fills `info`, whose size the caller has set.
wl_status wl_session_get_info(const wl_session *session, wl_session_info *info);

// Changes the sampling parameters; NULL means those of wl_model_get_sampler. A new seed restarts the random numbers.
wl_status wl_session_set_sampler(wl_session *session, const wl_sampler_params *params);

// Fills `params`, whose size the caller has set, with the sampling parameters, including the seed that was drawn. The logit biases belong
// to the session: they are valid until the next call of this function or wl_session_free.
wl_status wl_session_get_sampler(wl_session *session,
                                 wl_sampler_params *params);

// Reads `count` tokens. Afterwards wl_logits gives the logits after the last one. On WL_OK and WL_CANCELLED the number of tokens read is
// written to `fed`, which may be NULL. On other errors nothing was read, except WL_ERROR_MODEL: the tokens were read, but no token can be
// chosen by the logits after them.
wl_status wl_feed(wl_session *session,
                  const uint32_t *tokens,
                  size_t count,
                  size_t *fed);

// Makes the session one that has read `count` tokens and nothing else. It continues from its state, a mark or a checkpoint of its store,
// whichever covers the most of them, and reads the rest. Afterwards wl_logits gives the logits after the last token. The number of tokens
// that were not read again is written to `reused`, which may be NULL. On WL_CANCELLED the session has read only the first of the tokens.
wl_status wl_session_read_history(wl_session *session,
                                  const uint32_t *tokens,
                                  size_t count,
                                  size_t *reused);

// Stores a checkpoint of the current state if the session has a store. Reading a history and answering in a conversation store checkpoints
// by themselves.
wl_status wl_session_checkpoint(wl_session *session);

// Stores a pointer to the logits after the last token, and their number, the size of the model's vocabulary, in `count`. All are zero
// before the first token. Returns WL_ERROR_MODEL if a logit is NaN or infinite, or all are minus infinity; a token whose logit is minus
// infinity is never chosen. The memory belongs to the session and keeps its address until the session is freed; the next call that reads
// tokens or restores a state overwrites it.
wl_status wl_logits(const wl_session *session,
                    const float **logits,
                    size_t *count);

// Chooses a token by the last logits without reading it.
wl_status wl_sample(wl_session *session, uint32_t *token);

// Chooses a token and reads it.
wl_status wl_step(wl_session *session, uint32_t *token);

// Ends the call that is using the session, after a complete token: that call returns WL_CANCELLED, and a generation ends with
// WL_FINISH_CANCELLED. Between two calls of wl_generate_next it ends the generation at the next call. Otherwise it has no effect while no
// call is running, so a late cancellation does not end the next call. May be called at any time from any thread, including from a callback
// and from a thread that handles signals, but not from a signal handler.
wl_status wl_session_cancel(const wl_session *session);

// Discards a wl_session_cancel that arrived between two calls of wl_generate_next. May be called at any time from any thread.
wl_status wl_session_clear_cancel(const wl_session *session);

// Fills `params` with defaults; `size` is sizeof(wl_embed_params).
wl_status wl_embed_params_init(wl_embed_params *params, size_t size);

// Like wl_tokenize, for a text whose vector wl_embed computes: with the tokens that the tokenizer puts around a text. `task` names a
// prompt of the model's files that comes before the text, such as "query"; NULL means the files' default.
wl_status wl_embed_tokenize(const wl_model *model,
                            const char *text,
                            size_t length,
                            const char *task,
                            uint32_t *tokens,
                            size_t room,
                            size_t *count);

// Computes the vector of a text of `count` tokens and writes it to `vector`, which has room for `room` numbers, and its length to
// `length`; `params` may be NULL. Returns WL_ERROR_ROOM if it does not fit; with `vector` NULL and `room` 0 only the length is written and
// nothing is read. The session forgets everything else that it has read. No logits are computed.
wl_status wl_embed(wl_session *session,
                   const uint32_t *tokens,
                   size_t count,
                   const wl_embed_params *params,
                   float *vector,
                   size_t room,
                   size_t *length);

// Calls `function` with `user` while wl_feed, wl_session_read_history, wl_chat_say, wl_chat_start and the functions that set messages
// read, on the calling thread; NULL removes the callback. Forks of the session do not inherit it.
wl_status wl_session_set_progress(wl_session *session,
                                  wl_progress_fn function,
                                  void *user);

// Constrains the text of each later generation, which fits the form unless `max_tokens` or a stop cuts it short. `kind` is a
// wl_constraint, and `grammar`, `length` bytes, is its schema, expression or grammar; it may be NULL for kinds that need none. Thinking
// text that the chat template opens is free: the constraint applies after it. JSON has one space between its parts. Drafts, batches and
// forks obey the constraint, wl_sample and wl_step do not; wl_session_reset keeps it. Returns WL_ERROR_ARGUMENT if the form has a mistake,
// is too large or no text can fit it, and WL_ERROR_UNSUPPORTED in a build without constraints; the previous constraint then remains.
wl_status wl_session_constrain(wl_session *session,
                               uint32_t kind,
                               const char *grammar,
                               size_t length);

// Makes a batch for up to `most` sessions (1 to 1024; on a GPU 1 to 64) of the model and device of `session`. The batch computes with the
// threads of `session` and reads the weights once per step for all its sessions. Free it with wl_batch_free. On a GPU all sessions must
// have been made with the context, cache type and history of `session`.
wl_status wl_batch_new(const wl_session *session,
                       size_t most,
                       wl_batch **batch);

// Frees a batch, but none of its sessions; NULL does nothing.
wl_status wl_batch_free(wl_batch *batch);

// Each of `count` distinct sessions chooses a token and reads it, as in wl_step; `tokens` has room for `count` tokens. Each call may step
// other sessions of the batch's model; every session gives the tokens that it would give alone. On an error, which is the first session's,
// no token was read, unless a device was lost. Returns WL_ERROR_BUSY if another call is using a session. Only one call at a time may use
// the batch.
wl_status wl_batch_step(wl_batch *batch,
                        wl_session *const *sessions,
                        size_t count,
                        uint32_t *tokens);

// Session i of `count` distinct sessions reads `tokens[i]`. Otherwise like wl_batch_step.
wl_status wl_batch_feed(wl_batch *batch, wl_session *const *sessions, const uint32_t *tokens, size_t count);

// Advances the generations that wl_generate_start or wl_chat_start began on `count` distinct sessions, by one token each, together.
// `texts` and `lengths` have room for `count`: texts[i] is the text that session i's token completes, like that of wl_generate_next, but
// empty if the token completes none. It is NULL if the generation has ended, or if it fails alone because no token can be chosen; wl_generate_next then
// gives the result or the error, and the session may stay in the call. Each session gives the text that it would give alone. Errors and
// threads are as in wl_batch_step; WL_ERROR_UNSUPPORTED for a generation with `logprobs` or `on_logits`.
wl_status wl_batch_generate(wl_batch *batch,
                            wl_session *const *sessions,
                            size_t count,
                            const char **texts,
                            size_t *lengths);

// Fills `params` with defaults; `size` is sizeof(wl_generate_params).
wl_status wl_generate_params_init(wl_generate_params *params, size_t size);

// Generates text after the tokens read so far, and passes each piece to `on_text`, which may be NULL, with `user`. The session has read
// every token of a piece before the callback receives it. `params` and `result`, whose size the caller has set, may be NULL.
wl_status wl_generate(wl_session *session,
                      const wl_generate_params *params,
                      wl_text_fn on_text,
                      void *user,
                      wl_generate_result *result);

// Begins a generation that wl_generate_next advances, for programs that pull text instead of taking callbacks. `params` may be NULL. The
// generation ends with any other call on the session except wl_logits, wl_session_get_info, wl_session_set_sampler, wl_session_cancel and
// wl_session_clear_cancel.
wl_status wl_generate_start(wl_session *session,
                            const wl_generate_params *params);

// Stores the next piece of the generation that wl_generate_start or wl_chat_start began: `length` bytes of UTF-8, complete characters,
// with a zero byte after them, valid until the next call on the session. At the end `text` is NULL, `length` is 0, and `result`, whose
// size the caller has set, is filled; it may be NULL.
wl_status wl_generate_next(wl_session *session,
                           const char **text,
                           size_t *length,
                           wl_generate_result *result);

// Adds the results of the calls in the last answer, in their order: `count` zero-terminated texts. wl_generate then gives the next answer.
// In the conversation the calls become fields of the answer's message, as the template writes calls, and each result is a message of the
// role "tool"; if the template lists no functions, the answer stays as it is, and the user sends the results between <tool_response> tags.
// A session that has read the answer reads it again if the template writes it differently than the model.
wl_status wl_chat_results(wl_session *session,
                          const char *const *results,
                          size_t count);

// Replaces the conversation with `count` messages: the messages may extend, edit or drop thinking text from the earlier ones, or come from
// another process. The part that the session's state or its store has read already is not read again.
//
// The model's template decides which messages it accepts. If the last message is the user's, wl_generate gives the answer, which becomes
// part of the conversation; if the last message is an answer, wl_generate continues it. wl_chat_say adds a message. On errors the
// conversation is unchanged; on WL_CANCELLED the session has read only the first tokens of the messages.
wl_status wl_chat_set_messages(wl_session *session,
                               const wl_message *messages,
                               size_t count);

// Like wl_chat_set_messages, for messages in JSON: an array of objects with "role", "content" (a text, null, or parts of type "text"), and
// other fields that the template uses, such as "name" or "tool_calls". The numbers of tokens reused and read are written to `reused` and
// `read`, which may be NULL.
wl_status wl_session_set_messages(wl_session *session,
                                  const char *json,
                                  size_t length,
                                  size_t *reused,
                                  size_t *read);

// Sets the instructions before the first message of the conversation; an empty text removes them.
wl_status wl_chat_system(wl_session *session, const char *text, size_t length);

// Sets whether the model's template requests thinking text before the answer, from the next message on: 1 or 0, or -1 for the template's
// default. Templates without such a switch ignore it.
wl_status wl_chat_thinking(wl_session *session,
                           int32_t thinking);

// Sets the functions that the model may call, from the next message on: a JSON array of schemas in the format of the model's template,
// such as {"type": "function", "function": {"name", "description", "parameters"}}. An empty array removes them. A call that the model
// makes is part of its text, which wl_chat_parser and wl_chat_parse split; wl_chat_results answers it. If the template does not list
// functions, instructions at the end of the system message do, or before the first user message if the template has no system message;
// they are no part of wl_chat_messages_json. WL_ERROR_TEXT if the template does not write them.
wl_status wl_chat_tools(wl_session *session,
                        const char *json,
                        size_t length);

// Sets a variable of the model's template from the next message on, such as "reasoning_effort"; `json` is its value as zero-terminated
// JSON, NULL or null leaves it undefined.
wl_status wl_chat_variable(wl_session *session,
                           const char *name,
                           const char *json);

// Sends a message and passes the answer, piece by piece, to `on_text`, which may be NULL, with `user`. Only the new message is read,
// because the state holds the conversation before it. If the message cannot be read completely, it is not part of the conversation.
// However the answer ends, the text generated so far is part of the conversation. `params` and `result` are as in wl_generate.
//
// A session is a conversation from the first wl_chat call on until wl_session_reset.
wl_status wl_chat_say(wl_session *session,
                      const char *message,
                      size_t length,
                      const wl_generate_params *params,
                      wl_text_fn on_text,
                      void *user,
                      wl_generate_result *result);

// Sends a message and begins the answer, which wl_generate_next advances. If a call ends the generation early, as wl_generate_start
// describes, the text generated so far is the answer.
wl_status wl_chat_start(wl_session *session,
                        const char *message,
                        size_t length,
                        const wl_generate_params *params);

// Removes the last message of the user and everything after it. With a store or marks in wl_session_params, the state before that message
// can be restored at once; without them the earlier messages may be read again.
wl_status wl_chat_undo(wl_session *session);

// Writes the conversation as a JSON array of {"role", "content"} and a zero byte to `json`, which has room for `room` bytes, and the
// length without the zero byte to `length`. Returns WL_ERROR_ROOM if both do not fit; with `json` NULL and `room` 0 only the length is
// written.
wl_status wl_chat_messages_json(wl_session *session,
                                char *json,
                                size_t room,
                                size_t *length);

// Makes a parser for an answer of a model to `prompt`, `prompt_length` bytes, whose end says whether the answer begins inside a thought;
// NULL and 0 mean a prompt that opens none. `tools`, `tools_length` bytes, is the JSON of wl_chat_tools; without tools an answer has no
// calls. The model's template and vocabulary give the format of calls and thoughts. Free the parser with wl_answer_parser_free.
wl_status wl_answer_parser_new(const wl_model *model,
                               const char *tools,
                               size_t tools_length,
                               const char *prompt,
                               size_t prompt_length,
                               wl_answer_parser **parser);

// Makes a parser for the session's running answer, or for the next one if none is running; pass it the texts of that answer. A running
// generation goes on, and is content only if it is no answer in a conversation. Free the parser with wl_answer_parser_free.
wl_status wl_chat_parser(wl_session *session,
                         wl_answer_parser **parser);

// Makes a parser that has read the session's last answer, or another complete answer to the same conversation, `length` bytes:
// wl_answer_next gives its parts, and wl_answer_json all of it. `is_cut` is 1 if a limit or a stop text ended the answer, so that a call at
// its end may lack its rest, else 0. Free the parser with wl_answer_parser_free.
wl_status wl_chat_parse(wl_session *session,
                        const char *text,
                        size_t length,
                        uint32_t is_cut,
                        wl_answer_parser **parser);

// Frees a parser; NULL does nothing.
wl_status wl_answer_parser_free(wl_answer_parser *parser);

// Adds `length` bytes of the answer, which may begin or end inside a character. WL_ZERO_TERMINATED is no length here. Bytes that are not
// UTF-8 are WL_ERROR_ARGUMENT, and none of them is added.
wl_status wl_answer_push(wl_answer_parser *parser,
                         const char *text,
                         size_t length);

// Ends the answer; wl_answer_next then gives the parts that were held back. `is_cut` is 1 if a limit or a stop text ended it, so that a call
// at its end may lack its rest, else 0: a forgotten end of a call is added.
wl_status wl_answer_finish(wl_answer_parser *parser,
                           uint32_t is_cut);

// Fills `part`, whose size the caller has set, with the next part of the text so far; its kind is WL_PART_NONE if there is none.
wl_status wl_answer_next(wl_answer_parser *parser,
                         wl_answer_part *part);

// Stores a pointer to the answer so far as a message in JSON, and its length: {"role": "assistant", "content"}, with "reasoning_content" and
// "tool_calls" if there are any; a call is {"id", "type": "function", "function": {"name", "arguments"}}, with the arguments as text and an
// id only if the model wrote one. The text has a zero byte after it and is valid until the next call on the parser.
wl_status wl_answer_json(wl_answer_parser *parser,
                         const char **json,
                         size_t *length);

// Fills `params` with defaults; `size` is sizeof(wl_render_params).
wl_status wl_render_params_init(wl_render_params *params, size_t size);

// Writes a conversation as the model's template does, in ChatML if the model has none, and a zero byte to `text`, which has room for `room`
// bytes, and the length without the zero byte to `length`. Returns WL_ERROR_ROOM if both do not fit; with `text` NULL and `room` 0 only the
// length is written. If the template does not list tools, the system message has instructions for them, as with wl_chat_tools.
wl_status wl_chat_render(const wl_model *model,
                         const wl_render_params *params,
                         char *text,
                         size_t room,
                         size_t *length);

// Writes the number of bytes that wl_state_write needs now. It counts only the used part of the state, so it grows as tokens are read.
wl_status wl_state_size(wl_session *session,
                        size_t *bytes);

// Writes the state, including the tokens read and the conversation, to `bytes`, which has room for `room`, and its length to `length`.
// Returns WL_ERROR_ROOM if it does not fit.
wl_status wl_state_write(wl_session *session,
                         void *bytes,
                         size_t room,
                         size_t *length);

// Restores a state that wl_state_write wrote, from a session on the same model with the same context, cache and history. Continuing from
// it gives bit for bit the same results as continuing the original session. The state of a conversation includes its messages and sampling
// parameters.
wl_status wl_state_read(wl_session *session,
                        const void *bytes,
                        size_t length);

// Like wl_state_write, to a file, which is replaced completely or not at all. The program `waterline` reads such files, and writes them
// with /save.
wl_status wl_state_save(wl_session *session,
                        const char *path);

// Like wl_state_read, from a file.
wl_status wl_state_load(wl_session *session, const char *path);

// Remembers the current state for wl_session_rewind, replacing the oldest mark if all `marks` of wl_session_params are taken. Without
// marks it does nothing.
wl_status wl_session_mark(wl_session *session);

// Goes back to an earlier position: restores the last mark at or before it, then reads the remembered tokens from there again. At a mark
// the state is restored bit for bit. Returns WL_ERROR_REWIND if no mark and history reach that position. A conversation goes back with
// wl_chat_undo instead.
wl_status wl_session_rewind(wl_session *session,
                            uint64_t position);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WATERLINE_H */
