/*
 * waterline: recurrent and hybrid language models in fixed memory.
 *
 * Every function but the five that return a version, a name, a sentence or a number of errno.h returns a wl_status. When it is not WL_OK,
 * wl_last_error() says in a sentence what was wrong, on the thread that called.
 *
 * Handles. wl_model, wl_session, wl_batch and wl_store are names of things inside the library, not addresses: NULL, a pointer from
 * elsewhere and a handle that was freed are all found out and give WL_ERROR_HANDLE. All other pointers are believed.
 *
 * Structs that are passed in or filled begin with their size, so that a program built with an older header works with a
 * newer library and the other way round. The function wl_..._params_init fills one with defaults; NULL means defaults
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
 * time. A session may move between threads. What else a function says about threads stands with it.
 */


#ifndef WATERLINE_H
#define WATERLINE_H

#include <stddef.h>
#include <stdint.h>

// As a length of text: the text ends at its first zero byte.
#define WL_ZERO_TERMINATED ((size_t)-1)


// Counts changes of this interface that break programs built before. It is the number in the library's soname.
#define WL_ABI_VERSION 1

// Result of a call. A program treats any other number as an error.
typedef enum {
  // Done.
  WL_OK = 0,
  // An argument is NULL, out of range, no UTF-8, or a struct with a size that cannot be.
  WL_ERROR_ARGUMENT = 1,
  // A handle is NULL, was freed, or did not come from this library.
  WL_ERROR_HANDLE = 2,
  // Another call on this session has not returned yet.
  WL_ERROR_BUSY = 3,
  // The result does not fit; how much room it needs was written. Nothing else changed.
  WL_ERROR_ROOM = 4,
  // The operating system refused a file operation.
  WL_ERROR_IO = 5,
  // The file is not a model, or is damaged, or what it computes is not a finite number.
  WL_ERROR_MODEL = 6,
  // The function exists, but not in this build, on this device or for this model.
  WL_ERROR_UNSUPPORTED = 7,
  // The model has no tokenizer or no chat template, or they refuse the text.
  WL_ERROR_TEXT = 8,
  // The session's context cannot hold the tokens. Nothing was read.
  WL_ERROR_CONTEXT = 9,
  // A saved state is damaged, or of another model or other session parameters. The session is as it was.
  WL_ERROR_STATE = 10,
  // The session cannot go back to that position. It is as it was.
  WL_ERROR_REWIND = 11,
  // wl_session_cancel ended the call. The session ends at a whole token and can continue.
  WL_CANCELLED = 12,
  // A defect of the library. A session that was in use can only be freed.
  WL_ERROR_INTERNAL = 13,
  // The device is full or was lost. Sessions on a lost one can only be freed; a state that was written before can be
  // read into a session elsewhere.
  WL_ERROR_DEVICE = 14,
  // The system refused memory or a thread. The call changed nothing.
  WL_ERROR_MEMORY = 15,
} wl_status;

// How much a message matters.
typedef enum {
  // A defect of the library.
  WL_LOG_ERROR = 0,
  // Models that are opened, on a GPU the form of a session's steps (one kernel, or a graph and why), and files of a store that
  // were passed over.
  WL_LOG_INFO = 1,
  // Sessions that are made.
  WL_LOG_DEBUG = 2,
} wl_log_level;

// Where a model computes.
typedef enum {
  // The first NVIDIA GPU, if there is one, NVRTC is installed, and the GPU's free memory is a quarter more than the weights;
  // the processor otherwise. wl_model_device says which, and why.
  WL_DEVICE_AUTO = 0,
  // The processor.
  WL_DEVICE_CPU = 1,
  // An NVIDIA GPU. A model's kernels are compiled when its first session is made, and kept on disk.
  WL_DEVICE_CUDA = 2,
} wl_device;

// A form that answers fit.
typedef enum {
  // Nothing: answers are free.
  WL_CONSTRAINT_NONE = 0,
  // JSON objects, whichever.
  WL_CONSTRAINT_JSON_OBJECT = 1,
  // A JSON schema.
  WL_CONSTRAINT_JSON_SCHEMA = 2,
  // A regular expression, which the whole answer matches.
  WL_CONSTRAINT_REGEX = 3,
  // A grammar in llguidance's variant of Lark.
  WL_CONSTRAINT_LARK = 4,
} wl_constraint;

// How keys and values of attention are stored.
typedef enum {
  // 16-bit floats.
  WL_CACHE_F16 = 0,
  // 32-bit floats.
  WL_CACHE_F32 = 1,
} wl_cache;

// The end of a context that is full of tokens which attention looks back on.
typedef enum {
  // WL_ERROR_CONTEXT, and nothing is read.
  WL_FULL_STOP = 0,
  // Attention forgets the oldest tokens but the first ones; recurrent layers go on as before. Nothing is read again.
  WL_FULL_SHIFT = 1,
  // The first tokens and the newest, as many as fill half of the rest of the context, are read again, and nothing else is remembered.
  WL_FULL_COMPACT = 2,
} wl_full;

// Why a generation ended.
typedef enum {
  // The model ended its answer.
  WL_FINISH_END = 0,
  // A stop text was met.
  WL_FINISH_STOP = 1,
  // As many tokens as were allowed.
  WL_FINISH_LENGTH = 2,
  // wl_session_cancel was called.
  WL_FINISH_CANCELLED = 3,
  // The callback ended it.
  WL_FINISH_CALLBACK = 4,
} wl_finish;

// Working memory to step sessions of one model together.
typedef struct wl_batch wl_batch;

// A model: weights and description, read-only. Any number of sessions share it.
typedef struct wl_model wl_model;

// One conversation, or one text, with the state that has read it. All that it needs is allocated when it is made.
typedef struct wl_session wl_session;

// Checkpoints of states at positions of token sequences, shared by sessions: a history that grew, was edited, lost its thinking
// text, is forked or is continued by another process goes on from the deepest one that it begins with.
typedef struct wl_store wl_store;

// Takes a message, a sentence without a line end that is valid during the call. It may be called from any thread, also
// from several at once. It must return: no exceptions, no longjmp.
typedef void (*wl_log_fn)(wl_log_level level, const char *message, void *user);

// How to open a model.
typedef struct {
  // sizeof(wl_model_params).
  uint32_t size;
  // A wl_device; WL_DEVICE_AUTO by default.
  uint32_t device;
  // Which GPU, for WL_DEVICE_CUDA; 0, the first, by default.
  uint32_t gpu;
  // 1 opens a model although its files hold tensors that the library does not use; it may be another model without them. 0 by
  // default.
  uint32_t allow_unused;
  // 1 copies the files into memory, so that they may be rewritten or shortened afterwards. 0, the default, maps them: a
  // mapped file that is shortened ends the process.
  uint32_t copy;
  // 1 opens the block of the model that predicts the token after the next one (MTP), for `mtp` of wl_session_params; an error where
  // the file has none. 0 by default.
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
  // The token that the tokenizer puts before plain text, or -1.
  int64_t bos;
  // The token that ends a document, or -1. A generation ends at others too, such as the end of a turn.
  int64_t eos;
  // Whether the model has a tokenizer: 1 or 0.
  uint32_t has_tokenizer;
  // Whether the model has a chat template: 1 or 0.
  uint32_t has_chat_template;
} wl_model_info;

// A number that is added to a token's logit.
typedef struct {
  // The token.
  uint32_t token;
  // Added to the logit, a finite number: -1e9 forbids the token.
  float bias;
} wl_logit_bias;

// How tokens are chosen. The steps, in this order: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
typedef struct {
  // sizeof(wl_sampler_params).
  uint32_t size;
  // Keep this many tokens; 0 keeps all. 40 by default.
  uint32_t top_k;
  // Seed of the random numbers. A new one each time by default, as in the program `waterline`: the same seed gives
  // the same text again. wl_session_get_sampler reads it back.
  uint64_t seed;
  // Divides the logits; 0 always takes the most probable token. 0.7 by default.
  float temperature;
  // Keep the most probable tokens up to this sum of probabilities; 1 keeps all. 0.95 by default.
  float top_p;
  // Keep tokens at least this many times as probable as the first; 0 keeps all. 0.05 by default.
  float min_p;
  // Factor against tokens seen in the window; 1, the default, is off, more discourages.
  float repetition_penalty;
  // Subtracted per occurrence in the window; 0, the default, is off.
  float frequency_penalty;
  // Subtracted once if the token occurs in the window; 0, the default, is off.
  float presence_penalty;
  // How many of the last tokens the three penalties count; 64 by default.
  uint32_t penalty_window;
  // 0.
  uint32_t reserved;
  // Logit biases, `bias_count` of them; they are copied. NULL by default.
  const wl_logit_bias *bias;
  // The number of logit biases; 0 by default.
  size_t bias_count;
} wl_sampler_params;

// How to make a store.
typedef struct {
  // sizeof(wl_store_params).
  uint32_t size;
  // Positions between checkpoints of a long prompt, whose chunks end there; 0, the default, means 256 on a CPU and a chunk on a GPU, which
  // reads long prompts slowly in shorter pieces.
  uint32_t grid;
  // Most bytes in memory; by default a quarter of the machine's memory, but 8 GiB at most.
  uint64_t bytes;
  // A directory where checkpoints are kept too, for other processes and later runs; NULL, the default, means none. It is made
  // if it does not exist; its files are their owner's alone.
  const char *directory;
  // Most bytes of files in the directory; 4 GiB by default.
  uint64_t directory_bytes;
} wl_store_params;

// The contents of a store and its work so far.
typedef struct {
  // sizeof(wl_store_stats).
  uint32_t size;
  // 0.
  uint32_t reserved;
  // Checkpoints in memory.
  uint64_t checkpoints;
  // Their bytes, which never exceed the bound.
  uint64_t bytes;
  // Checkpoints in the directory.
  uint64_t files;
  // Bytes of these files.
  uint64_t file_bytes;
  // Checkpoints that were evicted from memory.
  uint64_t evicted;
  // Tokens of histories that were not read again.
  uint64_t reused_tokens;
  // Tokens of histories that were read.
  uint64_t read_tokens;
} wl_store_stats;

// How to make a session.
typedef struct {
  // sizeof(wl_session_params).
  uint32_t size;
  // Threads that compute, the caller's included, 1 to 1024; 0, the default, means one for each physical core.
  // Sessions of one model with the same number share their threads and take turns. With 1, each computes on its
  // caller's thread, and sessions run side by side.
  uint32_t threads;
  // Tokens that full attention can look back on; models without it have no such bound. 4096 by default.
  size_t context;
  // How many of the last tokens are remembered, for penalties and wl_session_rewind. 4096 by default.
  size_t history;
  // Most tokens that are read at once, at most 65536; 0, the default, means what suits the device: 256 on the
  // processor, 2048 on a GPU.
  size_t chunk;
  // How many states wl_session_mark keeps, each as large as the session's; 0 by default.
  size_t marks;
  // A wl_cache; WL_CACHE_F16 by default.
  uint32_t cache;
  // A wl_full: the end of a full context; WL_FULL_STOP by default.
  uint32_t on_full;
  // How tokens are chosen; NULL, the default, means the defaults of wl_sampler_params. It is copied.
  const wl_sampler_params *sampler;
  // 1: the bits of a token depend on nothing but the tokens before it and the kind of device, not on chunks, batches or
  // threads; prompts are read more slowly. 0 by default.
  uint32_t exact;
  // First tokens that stay when the context is full, fewer than half of it; of a conversation its instructions do, too. 4 by default.
  uint32_t keep;
  // Where checkpoints are kept, for wl_session_read_history and conversations; NULL, the default, means nowhere. The session keeps
  // what it needs of the store.
  const wl_store *store;
  // Most tokens that a generation drafts by looking up what followed the last tokens before, up to 64; 0, the default, means none. The
  // text is the same without; drafts make it come sooner, and need the memory of one more state.
  uint32_t lookup;
  // Most tokens that a generation drafts by the model's MTP block, in place of `lookup`; 0, the default, means none. The model was opened
  // with `mtp` of wl_model_params.
  uint32_t mtp;
} wl_session_params;

// The memory of a model and a session, in bytes. None of it grows while tokens are read.
typedef struct {
  // sizeof(wl_plan).
  uint32_t size;
  // Threads that compute.
  uint32_t threads;
  // The weights, which are mapped from the file and shared by all sessions.
  uint64_t weight_bytes;
  // The session's state.
  uint64_t state_bytes;
  // The session's working memory on the processor, and its marks. What a GPU needs besides, wl_session_get_info says.
  uint64_t work_bytes;
} wl_plan;

// The position and size of a session.
typedef struct {
  // sizeof(wl_session_info).
  uint32_t size;
  // Threads that compute.
  uint32_t threads;
  // Tokens read so far.
  uint64_t position;
  // Bytes of the state.
  uint64_t state_bytes;
  // Bytes of working memory and marks.
  uint64_t work_bytes;
  // Tokens that were drafted since the session was made.
  uint64_t drafted;
  // Those of them that were right.
  uint64_t accepted;
} wl_session_info;

// Hears how far the reading of a prompt has come, after every `chunk` tokens: `read` of `total`. Returns 0 to go on,
// anything else to cancel the call. It is called on the caller's thread; other calls on the session return
// WL_ERROR_BUSY. It must return: no exceptions, no longjmp.
typedef int (*wl_progress_fn)(uint64_t read, uint64_t total, void *user);

// Takes a token that was generated and read, with its log-probability by the model alone, before bias, penalties and temperature (NaN
// unless `logprobs` is 1), and the text that it completes: `length` bytes of UTF-8, with a zero byte after them, valid during the
// call; none while a character or the beginning of a stop text is incomplete. Returns 0 to go on, anything else to stop after it.
// Otherwise as wl_text_fn.
typedef int (*wl_token_fn)(uint32_t token, float logprob, const char *text, size_t length, void *user);

// Sees the logits, `count` numbers, before a token is chosen by them; what it changes holds for that choice. Minus infinity forbids a
// token. A GPU then sends all logits of every token. It must return: no exceptions, no longjmp.
typedef void (*wl_logits_fn)(float *logits, size_t count, void *user);

// When a generation ends.
typedef struct {
  // sizeof(wl_generate_params).
  uint32_t size;
  // 1 goes on after the token that ends an answer; 0 by default.
  uint32_t ignore_end;
  // Most tokens; 1024 by default.
  size_t max_tokens;
  // Texts, each up to its zero byte, that end the generation and are not part of it; NULL by default.
  const char *const *stop;
  // The number of stop texts; 0 by default.
  size_t stop_count;
  // Tokens that end the generation besides the model's own; NULL by default.
  const uint32_t *stop_tokens;
  // The number of stop tokens; 0 by default.
  size_t stop_token_count;
  // 1 computes the log-probability of each token, which `on_token` gets; a session then drafts nothing. 0 by default.
  uint32_t logprobs;
  // 0.
  uint32_t reserved;
  // Called for each token; NULL by default.
  wl_token_fn on_token;
  // Called before each token is chosen; a session then drafts nothing. NULL by default.
  wl_logits_fn on_logits;
  // Passed to `on_token` and `on_logits`, so it lives as long as the generation; NULL by default.
  void *user;
} wl_generate_params;

// Takes a piece of text: `length` bytes of UTF-8, whole characters, with a zero byte after them, valid during the call.
// Returns 0 to go on, anything else to stop. It may cancel or free the session; other calls on the session return
// WL_ERROR_BUSY. It must return: no exceptions, no longjmp.
typedef int (*wl_text_fn)(const char *text, size_t length, void *user);

// How a generation ended.
typedef struct {
  // sizeof(wl_generate_result).
  uint32_t size;
  // A wl_finish.
  uint32_t finish;
  // Tokens that were generated, one that ends the answer included.
  uint64_t tokens;
  // Tokens of the message that were read before; 0 for a generation without a message.
  uint64_t prompt_tokens;
  // Seconds that reading the message took.
  double prompt_seconds;
  // Seconds that generating took, without those between the calls.
  double seconds;
  // Tokens of the conversation that were not read again.
  uint64_t reused_tokens;
} wl_generate_result;

// A message of a conversation. Both texts end at their zero byte.
typedef struct {
  // "system", "user", "assistant", or another that the model's template takes.
  const char *role;
  // The text.
  const char *content;
} wl_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// WL_ABI_VERSION of the library, to compare with the header's.
uint32_t wl_abi_version(void);

// The library's version, such as "0.1.0".
const char *wl_version(void);

// The reason why the last call on this thread did not return WL_OK, as a sentence; "" if there was none.
// It is valid until the next such call on this thread.
const char *wl_last_error(void);

// Why the system refused the file operation of the last call on this thread that did not return WL_OK: a number of errno.h, such as
// ENOENT; 0 if that call failed for another reason or the system gives no number.
int32_t wl_last_os_error(void);

// The name of a status, such as "WL_ERROR_IO"; "unknown status" for other numbers. Never NULL, and always valid.
const char *wl_status_name(int32_t status);

// Sends messages of `level`, a wl_log_level, and of those that matter more to `function`; NULL ends it. Without it the
// library writes nothing anywhere. Holds for the whole process and may be called from any thread but not from
// `function` itself, which gives WL_ERROR_BUSY. When it returns, the function before is no longer running.
wl_status wl_set_log(uint32_t level, wl_log_fn function, void *user);

// Fills `params` with defaults; `size` is sizeof(wl_model_params).
wl_status wl_model_params_init(wl_model_params *params, size_t size);

// Opens a GGUF file or a Hugging Face directory. Weights are mapped and read where they lie, so the file must not be
// changed in place while the model lives. `params` may be NULL. Free the model with wl_model_free.
wl_status wl_model_open(const char *path, const wl_model_params *params, wl_model **model);

// Opens a GGUF file that lies in memory. The bytes are copied and may be freed afterwards. `params` may be NULL.
wl_status wl_model_from_memory(const void *bytes, size_t length, const wl_model_params *params, wl_model **model);

// Opens the model that is part of the library. `params` may be NULL. WL_ERROR_UNSUPPORTED if the library was built
// without it.
wl_status wl_model_builtin(const wl_model_params *params, wl_model **model);

// Frees a model; NULL is nothing to free. Its sessions go on: the memory is given back with the last of them. Pointers
// that were got from the model end with the call.
wl_status wl_model_free(wl_model *model);

// Fills `info`, whose size the caller has set.
wl_status wl_model_get_info(const wl_model *model, wl_model_info *info);

// Gives the model's name. It is valid until the model is freed.
wl_status wl_model_name(const wl_model *model, const char **name);

// Says where sessions of the model compute: a GPU's name, or "CPU", followed by the reason in parentheses if that was left
// to the library. It is valid until the model is freed.
wl_status wl_model_device(const wl_model *model,
                          const char **device);

// Gives the model's description as JSON: its dimensions, and for every layer its mixer with its hyperparameters. It is valid
// until the model is freed.
wl_status wl_model_spec_json(const wl_model *model,
                             const char **json);

// Gives what a person should know of the model's files, a sentence a line: keys that nothing reads, ids without a token. It
// is valid until the model is freed.
wl_status wl_model_notes(const wl_model *model,
                         const char **notes);

// Writes the tokens of `text`, `length` bytes of UTF-8, to `tokens`, which has room for `room`, and their number to
// `count`. WL_ERROR_ROOM if they do not fit; with `tokens` NULL and `room` 0 only the number is written. Nothing is put
// before or after the text. If `special` is not 0, the names of special tokens in the text mean these tokens, as in a
// template; otherwise they are letters like any other, as they should be in what a user types.
wl_status wl_tokenize(const wl_model *model,
                      const char *text,
                      size_t length,
                      uint32_t special,
                      uint32_t *tokens,
                      size_t room,
                      size_t *count);

// Writes the exact bytes of `tokens` to `bytes`, which has room for `room`, and a zero byte after them; `length` is
// their number without it. The bytes may begin or end inside a character. WL_ERROR_ROOM if bytes and zero do not fit;
// with `bytes` NULL and `room` 0 only the length is written.
wl_status wl_detokenize(const wl_model *model,
                        const uint32_t *tokens,
                        size_t count,
                        char *bytes,
                        size_t room,
                        size_t *length);

// Gives the exact bytes of a token, possibly a part of a character; no zero byte follows. They are valid until the
// model is freed.
wl_status wl_token_bytes(const wl_model *model, uint32_t token, const char **bytes, size_t *length);

// Fills `params` with defaults; `size` is sizeof(wl_sampler_params).
wl_status wl_sampler_params_init(wl_sampler_params *params, size_t size);

// Fills `params` with defaults; `size` is sizeof(wl_store_params).
wl_status wl_store_params_init(wl_store_params *params, size_t size);

// Makes a store, with the checkpoints of its directory if it has one. `params` may be NULL. Sessions get it by `store` of
// wl_session_params; those of any models may share it. Free it with wl_store_free.
wl_status wl_store_new(const wl_store_params *params,
                       wl_store **store);

// Frees a store; NULL is nothing to free. Sessions that have it keep it. The last one waits until its directory is written.
wl_status wl_store_free(wl_store *store);

// Fills `stats`, whose size the caller has set.
wl_status wl_store_get_stats(const wl_store *store, wl_store_stats *stats);

// Forgets all checkpoints, those of the directory too.
wl_status wl_store_clear(wl_store *store);

// Waits until everything that was to be written to the directory has been.
wl_status wl_store_flush(wl_store *store);

// Fills `params` with defaults; `size` is sizeof(wl_session_params).
wl_status wl_session_params_init(wl_session_params *params, size_t size);

// Fills `plan`, whose size the caller has set, with the memory that the model in a file and a session on it would
// need. Nothing but the file's header and its small tensors is read, and nothing stays open. `params` may be NULL.
wl_status wl_plan_file(const char *path, const wl_session_params *params, wl_plan *plan);

// As wl_plan_file, for an open model.
wl_status wl_plan_model(const wl_model *model, const wl_session_params *params, wl_plan *plan);

// Makes a session on `model`. `params` may be NULL. Free it with wl_session_free. The session keeps what it needs of
// the model.
wl_status wl_session_new(const wl_model *model, const wl_session_params *params, wl_session **session);

// Frees a session; NULL is nothing to free. May be called at any time from any thread: a call that is using the
// session is cancelled, and the memory is given back when it returns.
wl_status wl_session_free(wl_session *session);

// Makes a second session in the same state, conversation included, that goes its own way from now on. Free it with
// wl_session_free.
wl_status wl_session_fork(wl_session *session, wl_session **fork);

// Forgets everything that was read or said. Sampling parameters stay; random numbers begin again at the seed.
wl_status wl_session_reset(wl_session *session);

// Fills `info`, whose size the caller has set.
wl_status wl_session_get_info(const wl_session *session, wl_session_info *info);

// Changes how tokens are chosen; NULL means the defaults. A new seed restarts the random numbers.
wl_status wl_session_set_sampler(wl_session *session, const wl_sampler_params *params);

// Fills `params`, whose size the caller has set, with how tokens are chosen, the seed that was drawn included. The
// logit biases belong to the session: they are valid until the next call of this function or wl_session_free.
wl_status wl_session_get_sampler(wl_session *session, wl_sampler_params *params);

// Reads `count` tokens. Afterwards wl_logits gives the logits after the last one. On WL_CANCELLED and WL_OK the number
// of tokens read is written to `fed`, which may be NULL; on other errors nothing was read, but for WL_ERROR_MODEL: the
// tokens were read, and no token can be chosen by the logits after them.
wl_status wl_feed(wl_session *session, const uint32_t *tokens, size_t count, size_t *fed);

// The session becomes one that has read `count` tokens and nothing else: it goes on from its own state, a mark or a checkpoint of its
// store, whichever has read most of them, and reads the rest. Afterwards wl_logits gives the logits after the last one. How many
// tokens were not read again is written to `reused`, which may be NULL. On WL_CANCELLED the session has read some first tokens.
wl_status wl_session_read_history(wl_session *session,
                                  const uint32_t *tokens,
                                  size_t count,
                                  size_t *reused);

// Takes a checkpoint of this state, if the session has a store. Reading a history and answering in a conversation take their own.
wl_status wl_session_checkpoint(wl_session *session);

// Gives the logits after the last token, `count` numbers, the model's vocabulary; all zero before the first token.
// WL_ERROR_MODEL if one is NaN or infinite, or all are minus infinity; a token whose logit is minus infinity is never
// chosen. The memory belongs to the session and stays where it is until the session is freed; the next call that reads
// tokens or restores a state writes other numbers there.
wl_status wl_logits(const wl_session *session, const float **logits, size_t *count);

// Chooses a token by the last logits, without reading it.
wl_status wl_sample(wl_session *session, uint32_t *token);

// Chooses a token and reads it.
wl_status wl_step(wl_session *session, uint32_t *token);

// Ends the call that is using the session, after a whole token: it returns WL_CANCELLED, and a generation ends with
// WL_FINISH_CANCELLED, one that wl_generate_next carries on at its next call. When nothing is going on it does nothing,
// so that one that comes late does not end the next call. May be called at any time from any thread, from a callback
// and from a signal handler's thread, but not from the handler itself.
wl_status wl_session_cancel(const wl_session *session);

// Forgets a wl_session_cancel that came between two calls of wl_generate_next. May be called at any time from any
// thread.
wl_status wl_session_clear_cancel(const wl_session *session);

// Calls `function` with `user` while wl_feed, wl_session_read_history, wl_chat_say, wl_chat_start and the
// functions that set messages read, on the thread that calls them; NULL ends it. Forks of the session have none.
wl_status wl_session_set_progress(wl_session *session, wl_progress_fn function, void *user);

// From the next generation on, the text of each fits a form, unless `max_tokens` or a stop cuts it. `kind` is a wl_constraint, and
// `grammar`, `length` bytes, its schema, expression or grammar; it may be NULL for kinds without. A thought that the chat template opens is
// free: the form holds after it. JSON has one space between its parts. Drafts, batches and forks keep to the form, wl_sample and wl_step do
// not; wl_session_reset leaves it. WL_ERROR_ARGUMENT if nothing can fit it, it has a mistake or is too large, WL_ERROR_UNSUPPORTED in a
// build without constraints; the form is then as it was.
wl_status wl_session_constrain(wl_session *session,
                               uint32_t kind,
                               const char *grammar,
                               size_t length);

// Makes a batch for up to `most` sessions, 1 to 1024, on a GPU 1 to 64, of the model and the device of `session`, which compute
// with its threads. Free it with wl_batch_free. The weights are read once for all sessions of a step. On a GPU all sessions must
// have been opened with the context, cache type and history of `session`.
wl_status wl_batch_new(const wl_session *session,
                       size_t most,
                       wl_batch **batch);

// Frees a batch, but none of its sessions; NULL is nothing to free.
wl_status wl_batch_free(wl_batch *batch);

// Each of `count` sessions, all different, chooses a token and reads it, as wl_step does; `tokens` has room for `count` of
// them. Any sessions that the batch is for may step together, others at each call; each gives the tokens that it gives alone.
// On an error, the first session's, no token was read, unless a device was lost. A session that another call is using is
// WL_ERROR_BUSY. One call at a time may use the batch.
wl_status wl_batch_step(wl_batch *batch,
                        wl_session *const *sessions,
                        size_t count,
                        uint32_t *tokens);

// Session i of `count`, all different, reads `tokens[i]`. Otherwise as wl_batch_step.
wl_status wl_batch_feed(wl_batch *batch, wl_session *const *sessions, const uint32_t *tokens, size_t count);

// Carries on, by one token each and together, the generations that wl_generate_start or wl_chat_start have begun on `count` sessions,
// all different. `texts` and `lengths` have room for `count`: texts[i] is the text that session i's token completes, as wl_generate_next
// gives it, but empty while none is complete. It is NULL where the generation has ended, whose result wl_generate_next gives, or where its
// form leaves it no token, which wl_generate_next says; such sessions may stay in the call. Each gives the text that it gives alone. Errors
// and threads are as in wl_batch_step; WL_ERROR_UNSUPPORTED for a generation with `logprobs` or `on_logits`.
wl_status wl_batch_generate(wl_batch *batch,
                            wl_session *const *sessions,
                            size_t count,
                            const char **texts,
                            size_t *lengths);

// Fills `params` with defaults; `size` is sizeof(wl_generate_params).
wl_status wl_generate_params_init(wl_generate_params *params, size_t size);

// Generates text after what has been read, and gives each piece to `on_text`, which may be NULL, with `user`. Every
// token that is shown has been read by the session. `params` and `result`, whose size the caller has set, may be NULL.
wl_status wl_generate(wl_session *session,
                      const wl_generate_params *params,
                      wl_text_fn on_text,
                      void *user,
                      wl_generate_result *result);

// Begins a generation that wl_generate_next carries on, for programs that pull text instead of taking callbacks.
// `params` may be NULL. Any call on the session but wl_generate_next, wl_logits, wl_session_get_info,
// wl_session_set_sampler and the two that cancel ends it.
wl_status wl_generate_start(wl_session *session, const wl_generate_params *params);

// Gives the next piece of the generation that wl_generate_start or wl_chat_start has begun: `length` bytes of UTF-8,
// whole characters, with a zero byte after them, valid until the next call on the session. At the end `text` is NULL,
// `length` 0, and `result` is filled, whose size the caller has set; it may be NULL.
wl_status wl_generate_next(wl_session *session, const char **text, size_t *length, wl_generate_result *result);

// The conversation becomes `count` messages, whatever it was before: a history that grew, was edited, lost its thinking text or comes
// from another process. What the states at hand have read of it, the session's own and those of its store, is not read again.
//
// The model's template decides which messages it takes. After a last message of the user, wl_generate gives the answer, which
// becomes part of the conversation, and where the last message is an answer, it goes on with it; wl_chat_say adds a message.
// On errors the conversation is as it was; on WL_CANCELLED the session has read some first tokens of the messages.
wl_status wl_chat_set_messages(wl_session *session,
                               const wl_message *messages,
                               size_t count);

// As wl_chat_set_messages, for messages as JSON: an array of objects with "role", "content" (a text, null, or parts of type "text"), and
// whatever else the template takes, such as "name" or "tool_calls". How many tokens were reused and read is written to `reused`
// and `read`, which may be NULL.
wl_status wl_session_set_messages(wl_session *session,
                                  const char *json,
                                  size_t length,
                                  size_t *reused,
                                  size_t *read);

// Sets the instructions ahead of the conversation, before its first message; an empty text removes them.
wl_status wl_chat_system(wl_session *session, const char *text, size_t length);

// Sets, from the next message on, whether the model's template requests a thought before the answer: 1 or 0, or -1 as the template does
// by default. Templates without such a switch ignore it.
wl_status wl_chat_thinking(wl_session *session,
                           int32_t thinking);

// Names, from the next message on, the functions that the model may call: a JSON array of schemas as the model's template takes them,
// such as {"type": "function", "function": {"name", "description", "parameters"}}. An empty array removes them. A call that the model
// makes is part of its text.
wl_status wl_chat_tools(wl_session *session,
                        const char *json,
                        size_t length);

// Sends a message and gives the answer, piece by piece, to `on_text`, which may be NULL, with `user`. Only what is new
// is read: the conversation before is in the state. If the message cannot be read as a whole, it was not sent.
// Whatever ends the answer, it is part of the conversation as far as it came. `params` and `result` as in wl_generate.
//
// A session is a conversation from the first wl_chat call on until wl_session_reset.
wl_status wl_chat_say(wl_session *session,
                      const char *message,
                      size_t length,
                      const wl_generate_params *params,
                      wl_text_fn on_text,
                      void *user,
                      wl_generate_result *result);

// Sends a message and begins the answer, which wl_generate_next carries on. A call that ends the generation early, as
// wl_generate_start says, makes what was generated the answer.
wl_status wl_chat_start(wl_session *session, const char *message, size_t length, const wl_generate_params *params);

// Takes back the last message of the user and what follows it. A store or marks in wl_session_params make the state before it
// available at once; without them the messages before may be read again.
wl_status wl_chat_undo(wl_session *session);

// Writes the conversation to `json`, which has room for `room` bytes, as an array of {"role", "content"} with a zero
// byte after it; `length` is its length without it. WL_ERROR_ROOM if both do not fit; with `json` NULL and `room` 0
// only the length is written.
wl_status wl_chat_messages_json(wl_session *session, char *json, size_t room, size_t *length);

// Writes how many bytes wl_state_write needs now: what was used of the state, so it grows with what was read.
wl_status wl_state_size(wl_session *session, size_t *bytes);

// Writes the state, what was read and said included, to `bytes`, which has room for `room`, and its length to `length`.
// WL_ERROR_ROOM if it does not fit.
wl_status wl_state_write(wl_session *session, void *bytes, size_t room, size_t *length);

// Takes over a state that wl_state_write wrote, from a session on the same model with the same context, cache and history.
// To go on from there is, bit for bit, to go on from where it was written. A conversation brings its messages and its
// sampling parameters with it.
wl_status wl_state_read(wl_session *session,
                        const void *bytes,
                        size_t length);

// As wl_state_write, to a file, which is replaced as a whole or not at all. The program `waterline` reads such files,
// and writes them with /save.
wl_status wl_state_save(wl_session *session, const char *path);

// As wl_state_read, from a file.
wl_status wl_state_load(wl_session *session, const char *path);

// Remembers this state for wl_session_rewind, in place of the oldest if `marks` of wl_session_params are taken.
// Without marks it does nothing.
wl_status wl_session_mark(wl_session *session);

// Goes back to an earlier position: to the last mark at or before it, and from there by reading the tokens of the history
// again. At a mark the state is what it was, bit for bit. WL_ERROR_REWIND if no mark and history lead there. A
// conversation goes back by wl_chat_undo instead.
wl_status wl_session_rewind(wl_session *session,
                            uint64_t position);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WATERLINE_H */
