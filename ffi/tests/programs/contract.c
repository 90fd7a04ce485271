/*
 * Checks the promises of waterline.h against the library: results, and that every mistake a program can make gives nothing
 * worse than a status. The argument is a folder to write to.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <waterline.h>

static int failures;

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, wl_last_error());           \
            failures++;                                                                             \
        }                                                                                           \
    } while (0)
#define OK(call) CHECK((call) == WL_OK)
/* The call returns this status, with a sentence that contains this text. */
#define REFUSED(status, text, call)                                                                 \
    do {                                                                                            \
        CHECK((call) == (status));                                                                  \
        CHECK(strstr(wl_last_error(), text) != NULL);                                               \
    } while (0)

/* Text that a callback collects. */
struct text {
    char bytes[1 << 16];
    size_t length;
    int pieces, stop_after;
    wl_session *session;
    wl_status seen;
};

static int collect(const char *piece, size_t length, void *user)
{
    struct text *text = user;
    CHECK(piece[length] == 0 && strlen(piece) <= length);
    if (text->length + length < sizeof text->bytes) {
        memcpy(text->bytes + text->length, piece, length);
        text->length += length;
        text->bytes[text->length] = 0;
    }
    return ++text->pieces == text->stop_after;
}

static struct text one, two;

static struct text *empty(struct text *text)
{
    memset(text, 0, sizeof *text);
    return text;
}

static wl_session *greedy(const wl_model *model, size_t marks)
{
    wl_sampler_params sampler;
    OK(wl_sampler_params_init(&sampler, sizeof sampler));
    sampler.temperature = 0;
    wl_session_params params;
    OK(wl_session_params_init(&params, sizeof params));
    params.threads = 1;
    params.marks = marks;
    params.sampler = &sampler;
    wl_session *session = NULL;
    OK(wl_session_new(model, &params, &session));
    return session;
}

static void read_text(const wl_model *model, wl_session *session, const char *text)
{
    uint32_t tokens[512];
    size_t count = 0, fed = 0;
    OK(wl_tokenize(model, text, WL_ZERO_TERMINATED, 0, tokens, 512, &count));
    OK(wl_feed(session, tokens, count, &fed));
    CHECK(fed == count);
}

static uint64_t position(wl_session *session)
{
    wl_session_info info = {.size = sizeof info};
    OK(wl_session_get_info(session, &info));
    return info.position;
}

static void versions_and_names(void)
{
    CHECK(wl_abi_version() == WL_ABI_VERSION);
    CHECK(strchr(wl_version(), '.') != NULL);
    CHECK(strcmp(wl_status_name(WL_ERROR_IO), "WL_ERROR_IO") == 0);
    CHECK(strcmp(wl_status_name(12345), "unknown status") == 0);
    CHECK(strcmp(wl_last_error(), "") == 0);
}

static void handles(const wl_model *model)
{
    wl_session *session = greedy(model, 0);
    long long elsewhere[4] = {0};
    uint32_t token;

    REFUSED(WL_ERROR_HANDLE, "NULL", wl_step(NULL, &token));
    REFUSED(WL_ERROR_HANDLE, "not a handle", wl_step((wl_session *)elsewhere, &token));
    REFUSED(WL_ERROR_HANDLE, "not a handle", wl_step((wl_session *)(uintptr_t)-1, &token));
    REFUSED(WL_ERROR_HANDLE, "another kind", wl_step((wl_session *)model, &token));
    REFUSED(WL_ERROR_HANDLE, "another kind", wl_model_free((wl_model *)session));
    REFUSED(WL_ERROR_HANDLE, "NULL", wl_session_new(NULL, NULL, &session));

    wl_session *fork;
    OK(wl_session_fork(session, &fork));
    OK(wl_session_free(fork));
    REFUSED(WL_ERROR_HANDLE, "freed", wl_session_free(fork));
    REFUSED(WL_ERROR_HANDLE, "freed", wl_session_cancel(fork));
    REFUSED(WL_ERROR_HANDLE, "freed", wl_session_reset(fork));
    OK(wl_session_free(NULL));
    OK(wl_model_free(NULL));
    OK(wl_session_free(session));

    /* A session outlives its model's handle. */
    wl_model *second;
    OK(wl_model_builtin(NULL, &second));
    session = greedy(second, 0);
    read_text(second, session, "Once");
    OK(wl_model_free(second));
    REFUSED(WL_ERROR_HANDLE, "freed", wl_model_free(second));
    OK(wl_step(session, &token));
    OK(wl_session_free(session));
}

static void null_pointers(wl_model *model)
{
    wl_session *session = greedy(model, 0);
    size_t n;
    uint32_t tokens[4] = {0};
    const char *text;
    const float *logits;

    REFUSED(WL_ERROR_ARGUMENT, "path is NULL", wl_model_open(NULL, NULL, &model));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_model_builtin(NULL, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "bytes is NULL", wl_model_from_memory(NULL, 10, NULL, &model));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_model_get_info(model, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_model_name(model, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_model_spec_json(model, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_model_device(model, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_model_notes(model, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_plan_model(model, NULL, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "text is NULL", wl_tokenize(model, NULL, 3, 0, tokens, 4, &n));
    REFUSED(WL_ERROR_ARGUMENT, "text is NULL", wl_tokenize(model, NULL, WL_ZERO_TERMINATED, 0, tokens, 4, &n));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_tokenize(model, "x", 1, 0, tokens, 4, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_tokenize(model, "x", 1, 0, NULL, 4, &n));
    REFUSED(WL_ERROR_ARGUMENT, "tokens is NULL", wl_detokenize(model, NULL, 4, NULL, 0, &n));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_token_bytes(model, 0, NULL, &n));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_token_bytes(model, 0, &text, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_session_new(model, NULL, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_session_fork(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_session_get_info(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "tokens is NULL", wl_feed(session, NULL, 1, NULL));
    OK(wl_feed(session, NULL, 0, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_sample(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_step(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_logits(session, NULL, &n));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_logits(session, &logits, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_generate_next(session, NULL, &n, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "no generation", wl_generate_next(session, &text, &n, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "message is NULL", wl_chat_say(session, NULL, 1, NULL, NULL, NULL, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_chat_messages_json(session, NULL, 0, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_state_size(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_state_write(session, NULL, 100, &n));
    REFUSED(WL_ERROR_ARGUMENT, "bytes is NULL", wl_state_read(session, NULL, 100));
    REFUSED(WL_ERROR_ARGUMENT, "path is NULL", wl_state_save(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "path is NULL", wl_state_load(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_session_params_init(NULL, sizeof(wl_session_params)));
    /* Misaligned, and larger than memory. */
    REFUSED(WL_ERROR_ARGUMENT, "multiple of 4", wl_feed(session, (uint32_t *)((char *)tokens + 1), 1, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "more than any memory", wl_feed(session, tokens, SIZE_MAX, NULL));
    wl_session_info before = {.size = sizeof before}, after = {.size = sizeof after};
    OK(wl_session_get_info(session, &before));
    size_t places[2];
    REFUSED(WL_ERROR_ARGUMENT, "place for the number of tokens", wl_feed(session, tokens, 1, (size_t *)((char *)places + 1)));
    OK(wl_session_get_info(session, &after));
    CHECK(before.position == after.position);
    REFUSED(WL_ERROR_ARGUMENT, "more than any memory", wl_tokenize(model, "x", SIZE_MAX - 1, 0, tokens, 4, &n));
    OK(wl_session_free(session));
}

static void sizes_of_structs(const wl_model *model)
{
    struct {
        wl_model_params known;
        uint64_t newer;
    } params;
    wl_model *other;
    OK(wl_model_params_init(&params.known, sizeof params));
    CHECK(params.known.size == sizeof params && params.newer == 0);
    OK(wl_model_builtin(&params.known, &other));
    OK(wl_model_free(other));
    params.newer = 1;
    REFUSED(WL_ERROR_ARGUMENT, "does not have", wl_model_builtin(&params.known, &other));
    params.known.size = 0;
    REFUSED(WL_ERROR_ARGUMENT, "its size is 0", wl_model_builtin(&params.known, &other));
    params.known.size = 0xffffffff;
    REFUSED(WL_ERROR_ARGUMENT, "its size is", wl_model_builtin(&params.known, &other));
    REFUSED(WL_ERROR_ARGUMENT, "its size cannot be", wl_model_params_init(&params.known, 0));
    REFUSED(WL_ERROR_ARGUMENT, "its size cannot be", wl_model_params_init(&params.known, SIZE_MAX));

    /* For a program built with an older header, only its part is written. */
    wl_model_info info;
    memset(&info, 0x55, sizeof info);
    info.size = 2 * sizeof(uint32_t);
    OK(wl_model_get_info(model, &info));
    CHECK(info.size == 2 * sizeof(uint32_t) && info.vocab > 0 && info.parameters == 0x5555555555555555);
    info.size = sizeof info;
    OK(wl_model_get_info(model, &info));
    CHECK(info.parameters > 1000000 && info.weight_bytes > 1000000 && info.has_tokenizer && info.has_chat_template);

    struct {
        wl_plan known;
        uint64_t newer;
    } plan;
    memset(&plan, 0x55, sizeof plan);
    plan.known.size = sizeof plan;
    OK(wl_plan_model(model, NULL, &plan.known));
    CHECK(plan.newer == 0 && plan.known.state_bytes > 0);
}

static void parameters_out_of_range(wl_model *model)
{
    wl_session *session = NULL;
    wl_session_params params;
#define WITH(assignment, text)                                                                      \
    do {                                                                                            \
        OK(wl_session_params_init(&params, sizeof params));                                         \
        assignment;                                                                                 \
        REFUSED(WL_ERROR_ARGUMENT, text, wl_session_new(model, &params, &session));                 \
    } while (0)
    WITH(params.threads = 1025, "threads");
    WITH(params.chunk = 65537, "chunk");
    WITH(params.chunk = SIZE_MAX, "chunk");
    WITH(params.context = 0, "context");
    WITH(params.history = 0, "history");
    WITH(params.history = SIZE_MAX, "larger than any memory");
    WITH(params.cache = 2, "cache");
    WITH(params.on_full = 3, "on_full");
    OK(wl_session_params_init(&params, sizeof params));
    params.history = SIZE_MAX / 16;
    REFUSED(WL_ERROR_MEMORY, "cannot be allocated", wl_session_new(model, &params, &session));
    OK(wl_session_params_init(&params, sizeof params));
    params.marks = SIZE_MAX;
    REFUSED(WL_ERROR_MEMORY, "cannot be allocated", wl_session_new(model, &params, &session));

    wl_sampler_params sampler;
    wl_logit_bias bias = {.token = 0xffffffff, .bias = 1};
#define SAMPLER(assignment, text)                                                                   \
    do {                                                                                            \
        OK(wl_sampler_params_init(&sampler, sizeof sampler));                                       \
        assignment;                                                                                 \
        WITH(params.sampler = &sampler, text);                                                      \
    } while (0)
    SAMPLER(sampler.temperature = -1, "temperature");
    SAMPLER(sampler.temperature = 0.0f / 0.0f, "temperature");
    SAMPLER(sampler.top_p = 0, "top_p");
    SAMPLER(sampler.min_p = 2, "min_p");
    SAMPLER(sampler.reserved = 1, "reserved");
    SAMPLER(sampler.penalty_window = 0xffffffff, "penalty_window");
    SAMPLER(sampler.bias_count = 1, "bias is NULL");
    SAMPLER((sampler.bias = &bias, sampler.bias_count = 1), "token 4294967295");
    /* Counts that no list has. */
    const size_t counts[] = {(1 << 20) + 1, SIZE_MAX / 64, SIZE_MAX / 8, SIZE_MAX};
    wl_session *greedily = greedy(model, 0);
    for (int i = 0; i < 4; i++) {
        SAMPLER((sampler.bias = &bias, sampler.bias_count = counts[i]), "bias: found");
        wl_generate_params generate;
        uint32_t token = 1;
        const char *stop = "x";
        OK(wl_generate_params_init(&generate, sizeof generate));
        generate.stop_tokens = &token;
        generate.stop_token_count = counts[i];
        REFUSED(WL_ERROR_ARGUMENT, "stop_tokens: found", wl_generate_start(greedily, &generate));
        OK(wl_generate_params_init(&generate, sizeof generate));
        generate.stop = &stop;
        generate.stop_count = counts[i];
        REFUSED(WL_ERROR_ARGUMENT, "stop: found", wl_generate_start(greedily, &generate));
        wl_message message = {"user", "x"};
        REFUSED(WL_ERROR_ARGUMENT, "messages: found", wl_chat_set_messages(greedily, &message, counts[i]));
    }
    OK(wl_session_free(greedily));
    CHECK(session == NULL);

    wl_model_params device = {.size = sizeof device, .device = WL_DEVICE_CUDA};
    REFUSED(WL_ERROR_UNSUPPORTED, "CUDA", wl_model_builtin(&device, &model));
    device.gpu = 99;
    REFUSED(WL_ERROR_UNSUPPORTED, "CUDA device 99", wl_model_builtin(&device, &model));
    device.device = WL_DEVICE_CPU;
    REFUSED(WL_ERROR_ARGUMENT, "gpu: found 99", wl_model_builtin(&device, &model));
    device = (wl_model_params){.size = sizeof device, .device = 3};
    REFUSED(WL_ERROR_ARGUMENT, "device", wl_model_builtin(&device, &model));
}

static void files(const char *folder)
{
    char path[1024];
    wl_model *model;
    snprintf(path, sizeof path, "%s/absent.gguf", folder);
    REFUSED(WL_ERROR_IO, "absent.gguf", wl_model_open(path, NULL, &model));
    CHECK(wl_last_os_error() == ENOENT);
    wl_plan plan = {.size = sizeof plan};
    REFUSED(WL_ERROR_IO, "absent.gguf", wl_plan_file(path, NULL, &plan));
    snprintf(path, sizeof path, "%s/text.gguf", folder);
    FILE *file = fopen(path, "w");
    fputs("general.architecture = waterline\n", file);
    fclose(file);
    REFUSED(WL_ERROR_MODEL, "text.gguf", wl_model_open(path, NULL, &model));
    REFUSED(WL_ERROR_MODEL, "the model in memory", wl_model_from_memory("GGUF\3\0\0\0", 8, NULL, &model));
    REFUSED(WL_ERROR_MODEL, "the model in memory", wl_model_from_memory(NULL, 0, NULL, &model));
}

static void text(const wl_model *model)
{
    static const char words[] = "na\xc3\xafve \xf0\x9f\x94\xa5 dog\0after";
    uint32_t tokens[64], again[64];
    size_t count = 0, length = 0;
    OK(wl_tokenize(model, words, sizeof words - 1, 0, tokens, 64, &count));
    CHECK(count > 3);
    /* Exact bytes, including the zero byte. */
    char bytes[64];
    OK(wl_detokenize(model, tokens, count, bytes, sizeof bytes, &length));
    CHECK(length == sizeof words - 1 && memcmp(bytes, words, length) == 0 && bytes[length] == 0);
    /* The pieces add up to the text. */
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const char *piece;
        size_t n;
        OK(wl_token_bytes(model, tokens[i], &piece, &n));
        CHECK(memcmp(bytes + at, piece, n) == 0);
        at += n;
    }
    CHECK(at == length);
    /* The required room, and too little room. */
    size_t needed = 0;
    OK(wl_tokenize(model, words, sizeof words - 1, 0, NULL, 0, &needed));
    CHECK(needed == count);
    memset(again, 0x55, sizeof again);
    REFUSED(WL_ERROR_ROOM, "room", wl_tokenize(model, words, sizeof words - 1, 0, again, count - 1, &needed));
    CHECK(needed == count && again[0] == 0x55555555);
    REFUSED(WL_ERROR_ROOM, "room", wl_detokenize(model, tokens, count, bytes, length, &needed));
    CHECK(needed == length);
    REFUSED(WL_ERROR_ARGUMENT, "not UTF-8: byte 2", wl_tokenize(model, "ab\xff", 3, 0, tokens, 64, &count));
    REFUSED(WL_ERROR_ARGUMENT, "not UTF-8", wl_tokenize(model, "\xf0\x9f", 2, 0, tokens, 64, &count));
    tokens[0] = 0xffffffff;
    REFUSED(WL_ERROR_ARGUMENT, "4294967295", wl_detokenize(model, tokens, 1, bytes, sizeof bytes, &length));

    /* The name of a special token is ordinary text unless `special` is set. */
    wl_model_info info = {.size = sizeof info};
    OK(wl_model_get_info(model, &info));
    const char *name;
    OK(wl_token_bytes(model, (uint32_t)info.eos, &name, &length));
    OK(wl_tokenize(model, name, length, 1, tokens, 64, &count));
    CHECK(count == 1 && tokens[0] == (uint32_t)info.eos);
    OK(wl_tokenize(model, name, length, 0, tokens, 64, &count));
    CHECK(count > 1);
}

static void reading(const wl_model *model)
{
    wl_session *session = greedy(model, 1);
    uint32_t token, tokens[2] = {1, 0xffffffff};
    size_t fed = 99, count = 0;
    REFUSED(WL_ERROR_ARGUMENT, "no token has been read", wl_sample(session, &token));
    REFUSED(WL_ERROR_ARGUMENT, "token 4294967295", wl_feed(session, tokens, 2, &fed));
    CHECK(fed == 0 && position(session) == 0);

    read_text(model, session, "Once upon a time");
    const float *logits;
    OK(wl_logits(session, &logits, &count));
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? i : best;
    OK(wl_sample(session, &token));
    CHECK(token == best);
    uint64_t here = position(session);
    OK(wl_session_mark(session));
    OK(wl_step(session, &token));
    CHECK(token == best && position(session) == here + 1);
    const float *still;
    OK(wl_logits(session, &still, &count));
    CHECK(still == logits);

    /* A rewind and the same step give the same bits. */
    float *before = malloc(count * sizeof *before);
    memcpy(before, logits, count * sizeof *before);
    OK(wl_session_rewind(session, here));
    OK(wl_step(session, &token));
    CHECK(memcmp(before, logits, count * sizeof *before) == 0);
    REFUSED(WL_ERROR_REWIND, "not been reached", wl_session_rewind(session, 1 << 30));

    /* A late cancellation ends nothing. */
    tokens[1] = 2;
    OK(wl_session_cancel(session));
    OK(wl_feed(session, tokens, 2, &fed));
    CHECK(fed == 2);

    OK(wl_session_reset(session));
    CHECK(position(session) == 0);
    read_text(model, session, "Once upon a time");
    OK(wl_step(session, &token));
    CHECK(token == best && memcmp(before, logits, count * sizeof *before) == 0);
    free(before);

    /* The plan matches the session. */
    wl_session_params params;
    OK(wl_session_params_init(&params, sizeof params));
    params.threads = 1;
    params.marks = 1;
    wl_plan plan = {.size = sizeof plan};
    wl_session_info info = {.size = sizeof info};
    OK(wl_plan_model(model, &params, &plan));
    OK(wl_session_get_info(session, &info));
    CHECK(plan.state_bytes == info.state_bytes && plan.work_bytes == info.work_bytes && info.threads == 1);
    OK(wl_session_free(session));
}

/* Records the progress of a prompt; stops after `stop_after` calls. */
struct progress {
    uint64_t read[64], total;
    int calls, stop_after;
};

static int advance(uint64_t read, uint64_t total, void *user)
{
    struct progress *progress = user;
    CHECK(progress->calls < 64 && read <= total);
    progress->read[progress->calls++] = read;
    progress->total = total;
    return progress->calls == progress->stop_after;
}

static void progress(const wl_model *model)
{
    wl_session_params params;
    OK(wl_session_params_init(&params, sizeof params));
    CHECK(params.chunk == 0);
    params.threads = 1;
    params.chunk = 4;
    wl_session *session;
    OK(wl_session_new(model, &params, &session));
    struct progress seen = {0};
    uint32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    size_t fed = 0;
    OK(wl_session_set_progress(session, advance, &seen));
    OK(wl_feed(session, tokens, 10, &fed));
    CHECK(seen.calls == 3 && seen.read[0] == 4 && seen.read[2] == 10 && seen.total == 10 && fed == 10);
    /* The callback may cancel, after the last tokens too, and cancels only its call. */
    for (int stop = 1; stop <= 3; stop++) {
        seen = (struct progress){.stop_after = stop};
        CHECK(wl_feed(session, tokens, 10, &fed) == WL_CANCELLED && fed == (stop < 3 ? 4u * stop : 10));
    }
    OK(wl_feed(session, tokens, 2, &fed));
    /* Conversations report progress too; a cancelled message was not sent. */
    OK(wl_session_reset(session));
    seen = (struct progress){.stop_after = 2};
    CHECK(wl_chat_say(session, "Tell me a story.", WL_ZERO_TERMINATED, NULL, NULL, NULL, NULL) == WL_CANCELLED);
    CHECK(seen.calls == 2);
    char json[64];
    size_t length;
    OK(wl_chat_messages_json(session, json, sizeof json, &length));
    CHECK(strcmp(json, "[]") == 0);
    OK(wl_session_set_progress(session, NULL, NULL));
    OK(wl_session_reset(session));
    OK(wl_feed(session, tokens, 10, &fed));
    CHECK(seen.calls == 2);
    OK(wl_session_free(session));
}

/* A history from elsewhere acts as if it had been said here. */
static void history(const wl_model *model)
{
    wl_session *session = greedy(model, 0);
    wl_generate_result result = {.size = sizeof result};
    char json[4096];
    size_t length;
    const wl_message said[] = {
        {"user", "My name is Anna."},
        {"assistant", "Nice to meet you, Anna!"},
        {"user", "Hello!"},
        {"assistant", "Hello!"},
        {"user", "Bye."},
    };
    OK(wl_chat_set_messages(session, said, 2));
    uint64_t here = position(session);
    CHECK(here > 0);
    OK(wl_chat_set_messages(session, said, 4));
    CHECK(position(session) > here);
    OK(wl_chat_say(session, "What is my name?", WL_ZERO_TERMINATED, NULL, collect, empty(&one), &result));
    CHECK(strstr(one.bytes, "Anna") != NULL);
    CHECK(result.prompt_tokens > 0 && result.prompt_seconds > 0 && result.seconds > 0 && result.tokens > 0);
    OK(wl_chat_messages_json(session, json, sizeof json, &length));
    CHECK(strstr(json, "{\"role\":\"assistant\",\"content\":\"Nice to meet you, Anna!\"}") != NULL);

    /* Any roles in any order; an invalid history changes nothing. */
    const wl_message free_order[] = {{"assistant", "Welcome!"}, {"tool", "42"}, {"user", "Hi."}};
    OK(wl_chat_set_messages(session, said, 5));
    OK(wl_chat_set_messages(session, free_order, 3));
    OK(wl_generate(session, NULL, NULL, NULL, NULL));
    OK(wl_chat_messages_json(session, json, sizeof json, &length));
    CHECK(strstr(json, "{\"role\":\"tool\",\"content\":\"42\"}") && strstr(json, "Hi.\"},{\"role\":\"assistant\""));
    here = position(session);
    REFUSED(WL_ERROR_ARGUMENT, "messages is NULL", wl_chat_set_messages(session, NULL, 1));
    wl_message wrong = {"user", NULL};
    REFUSED(WL_ERROR_ARGUMENT, "messages[0].content is NULL", wl_chat_set_messages(session, &wrong, 1));
    const char *parts = "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]";
    REFUSED(WL_ERROR_ARGUMENT, "image_url", wl_session_set_messages(session, parts, WL_ZERO_TERMINATED, NULL, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "messages", wl_session_set_messages(session, "{", 1, NULL, NULL));
    CHECK(position(session) == here);
    OK(wl_chat_set_messages(session, NULL, 0));
    CHECK(position(session) == 0);
    OK(wl_session_free(session));
}

/* Sessions share the tokens they have read. */
static void stores(const wl_model *model, const char *folder)
{
    char directory[1024];
    snprintf(directory, sizeof directory, "%s/store", folder);
    wl_store_params params;
    OK(wl_store_params_init(&params, sizeof params));
    params.directory = directory;
    wl_store_stats stats = {.size = sizeof stats};
    wl_session_params session_params;
    OK(wl_session_params_init(&session_params, sizeof session_params));
    session_params.threads = 1;
    const char *history = "[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]";
    size_t reused, read, all = 0;
    for (int run = 0; run < 2; run++) {
        wl_store *store;
        OK(wl_store_new(&params, &store));
        session_params.store = store;
        wl_session *one, *other;
        OK(wl_session_new(model, &session_params, &one));
        OK(wl_session_new(model, &session_params, &other));
        OK(wl_session_set_messages(one, history, WL_ZERO_TERMINATED, &reused, &read));
        /* The second run finds the checkpoints that the first one wrote. */
        CHECK(run == 0 ? reused == 0 && read > 0 : read == 0 && reused == all);
        all = reused + read;
        OK(wl_session_set_messages(other, history, WL_ZERO_TERMINATED, &reused, &read));
        CHECK(read == 0 && reused == all && position(other) == all);
        const float *a, *b;
        size_t count;
        OK(wl_logits(one, &a, &count));
        OK(wl_logits(other, &b, &count));
        CHECK(memcmp(a, b, count * sizeof *a) == 0);
        uint32_t tokens[] = {1, 2, 3};
        OK(wl_session_read_history(other, tokens, 3, &reused));
        CHECK(reused == (run == 0 ? 0 : 3) && position(other) == 3);
        OK(wl_session_checkpoint(other));
        OK(wl_store_flush(store));
        OK(wl_store_get_stats(store, &stats));
        CHECK(stats.checkpoints > 0 && stats.bytes <= params.bytes && stats.files > 0 && stats.reused_tokens >= all);
        OK(wl_store_free(store));
        REFUSED(WL_ERROR_HANDLE, "freed", wl_store_get_stats(store, &stats));
        OK(wl_session_free(one));
        OK(wl_session_free(other));
    }
    wl_store *store;
    OK(wl_store_new(&params, &store));
    OK(wl_store_clear(store));
    OK(wl_store_get_stats(store, &stats));
    CHECK(stats.checkpoints == 0 && stats.files == 0);
    OK(wl_store_free(store));
    params.directory = __FILE__;
    REFUSED(WL_ERROR_IO, "prefix store", wl_store_new(&params, &store));
    session_params.store = store;
    wl_session *session;
    REFUSED(WL_ERROR_HANDLE, "store", wl_session_new(model, &session_params, &session));
}

/* In a forked child, which has no thread that writes the directory, a store keeps checkpoints in memory and no call waits. */
static void forked_store(const wl_model *model, const char *folder)
{
    char directory[1024];
    snprintf(directory, sizeof directory, "%s/forked", folder);
    wl_store_params params;
    OK(wl_store_params_init(&params, sizeof params));
    params.directory = directory;
    wl_store *store;
    OK(wl_store_new(&params, &store));
    wl_session_params session_params;
    OK(wl_session_params_init(&session_params, sizeof session_params));
    session_params.threads = 1;
    session_params.store = store;
    wl_session *session;
    OK(wl_session_new(model, &session_params, &session));
    uint32_t tokens[] = {1, 2, 3};
    size_t reused;
    OK(wl_session_read_history(session, tokens, 3, &reused));
    OK(wl_store_flush(store));
    pid_t child = fork();
    if (child == 0) {
        int before = failures;
        alarm(60);
        wl_store_stats stats = {.size = sizeof stats};
        for (uint32_t last = 4; last < 24; last++) {
            uint32_t more[] = {1, 2, 3, last};
            OK(wl_session_read_history(session, more, 4, &reused));
            CHECK(reused == 3);
            OK(wl_session_checkpoint(session));
        }
        OK(wl_store_flush(store));
        OK(wl_store_get_stats(store, &stats));
        CHECK(stats.checkpoints > 0 && stats.files == 0);
        OK(wl_store_clear(store));
        OK(wl_session_free(session));
        OK(wl_store_free(store));
        _exit(failures - before);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    wl_store_stats stats = {.size = sizeof stats};
    OK(wl_store_get_stats(store, &stats));
    CHECK(stats.files > 0);
    OK(wl_session_free(session));
    OK(wl_store_free(store));
}

static void samplers(const wl_model *model)
{
    wl_session_params params;
    wl_sampler_params sampler, found = {.size = sizeof found}, other = {.size = sizeof other};
    OK(wl_session_params_init(&params, sizeof params));
    params.threads = 1;
    wl_session *session, *second;
    /* Without a chosen seed, each session draws a different one. */
    OK(wl_session_new(model, &params, &session));
    OK(wl_session_new(model, &params, &second));
    OK(wl_session_get_sampler(session, &found));
    OK(wl_session_get_sampler(second, &other));
    CHECK(found.seed != other.seed && found.top_k == 40 && found.bias_count == 0);
    OK(wl_session_free(second));

    OK(wl_sampler_params_init(&sampler, sizeof sampler));
    wl_logit_bias bias[2] = {{3, -1.5f}, {4, 2}};
    sampler.seed = 7;
    sampler.temperature = 0.25f;
    sampler.bias = bias;
    sampler.bias_count = 2;
    OK(wl_session_set_sampler(session, &sampler));
    memset(bias, 0, sizeof bias);
    OK(wl_session_get_sampler(session, &found));
    CHECK(found.seed == 7 && found.temperature == 0.25f && found.bias_count == 2);
    CHECK(found.bias[0].token == 3 && found.bias[0].bias == -1.5f && found.bias[1].token == 4);
    /* The parameters that were read back can be set again. */
    OK(wl_session_set_sampler(session, &found));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_session_get_sampler(session, NULL));
    OK(wl_session_free(session));
}

/* The session is busy with the generation that this callback runs in. */
static int meddle(const char *piece, size_t length, void *user)
{
    struct text *text = user;
    uint32_t token;
    (void)piece, (void)length;
    text->seen = wl_step(text->session, &token);
    if (text->pieces++ == 2)
        OK(wl_session_cancel(text->session));
    return 0;
}

static int free_it(const char *piece, size_t length, void *user)
{
    struct text *text = user;
    (void)piece, (void)length;
    if (text->pieces++ == 1)
        OK(wl_session_free(text->session));
    return 0;
}

static void generating(const wl_model *model)
{
    wl_session *session = greedy(model, 0);
    wl_generate_params params;
    wl_generate_result result = {.size = sizeof result};
    OK(wl_generate_params_init(&params, sizeof params));
    params.max_tokens = 12;
    read_text(model, session, "Once upon a time");
    wl_session *fork;
    OK(wl_session_fork(session, &fork));
    OK(wl_generate(session, &params, collect, empty(&one), &result));
    CHECK(result.finish == WL_FINISH_LENGTH && result.tokens == 12 && one.length > 12);

    /* Pulled text equals pushed text. */
    const char *piece;
    size_t length;
    empty(&two);
    OK(wl_generate_start(fork, &params));
    while (wl_generate_next(fork, &piece, &length, &result) == WL_OK && piece)
        collect(piece, length, &two);
    CHECK(piece == NULL && length == 0 && result.finish == WL_FINISH_LENGTH && result.tokens == 12);
    CHECK(strcmp(one.bytes, two.bytes) == 0 && position(fork) == position(session));
    OK(wl_generate_next(fork, &piece, &length, NULL));
    CHECK(piece == NULL);
    OK(wl_session_reset(fork));
    REFUSED(WL_ERROR_ARGUMENT, "no generation", wl_generate_next(fork, &piece, &length, NULL));

    /* A stop text taken from the middle of that text. */
    char stop[4] = {one.bytes[5], one.bytes[6], one.bytes[7], 0};
    const char *stops[] = {stop};
    params.stop = stops;
    params.stop_count = 1;
    read_text(model, fork, "Once upon a time");
    OK(wl_generate(fork, &params, collect, empty(&two), &result));
    CHECK(result.finish == WL_FINISH_STOP && two.length <= 5 && strncmp(one.bytes, two.bytes, two.length) == 0);
    stops[0] = "\xff";
    REFUSED(WL_ERROR_ARGUMENT, "stop text is not UTF-8", wl_generate(fork, &params, NULL, NULL, NULL));
    stops[0] = NULL;
    REFUSED(WL_ERROR_ARGUMENT, "stop text is NULL", wl_generate(fork, &params, NULL, NULL, NULL));

    /* An invalid result struct is rejected before anything happens, in a conversation too. */
    result.size = 0;
    uint64_t here = position(fork);
    params.stop_count = 0;
    REFUSED(WL_ERROR_ARGUMENT, "its size is 0", wl_generate(fork, &params, NULL, NULL, &result));
    REFUSED(WL_ERROR_ARGUMENT, "its size is 0", wl_chat_say(fork, "Hi.", 3, &params, NULL, NULL, &result));
    stops[0] = "";
    params.stop_count = 1;
    CHECK(wl_chat_say(fork, "Hi.", 3, &params, NULL, NULL, NULL) == WL_ERROR_ARGUMENT);
    CHECK(position(fork) == here);
    result.size = sizeof result;

    /* The callback stops the generation, calls into it, frees the session. */
    params.stop_count = 0;
    empty(&one)->stop_after = 3;
    OK(wl_generate(fork, &params, collect, &one, &result));
    CHECK(result.finish == WL_FINISH_CALLBACK && one.pieces == 3);
    empty(&one)->session = fork;
    params.max_tokens = 1000;
    OK(wl_generate(fork, &params, meddle, &one, &result));
    CHECK(one.seen == WL_ERROR_BUSY && result.finish == WL_FINISH_CANCELLED && one.pieces == 3);
    empty(&one)->session = fork;
    OK(wl_generate(fork, &params, free_it, &one, &result));
    CHECK(one.pieces == 2 && result.finish == WL_FINISH_CANCELLED);
    REFUSED(WL_ERROR_HANDLE, "freed", wl_session_free(fork));
    OK(wl_session_free(session));
}

static void *cancel_soon(void *user)
{
    struct text *text = user;
    while (__atomic_load_n(&text->pieces, __ATOMIC_ACQUIRE) < 3)
        ;
    text->seen = wl_session_cancel(text->session);
    return NULL;
}

static int count(const char *piece, size_t length, void *user)
{
    (void)piece, (void)length;
    __atomic_add_fetch(&((struct text *)user)->pieces, 1, __ATOMIC_RELEASE);
    return 0;
}

static void *fail(void *user)
{
    *(int *)user = wl_model_free((wl_model *)user) == WL_ERROR_HANDLE && strlen(wl_last_error()) > 0;
    return NULL;
}

static void threads(const wl_model *model)
{
    wl_session *session = greedy(model, 0);
    wl_generate_params params;
    wl_generate_result result = {.size = sizeof result};
    OK(wl_generate_params_init(&params, sizeof params));
    params.max_tokens = 100000;
    params.ignore_end = 1;
    read_text(model, session, "Once upon a time");
    empty(&one)->session = session;
    pthread_t thread;
    pthread_create(&thread, NULL, cancel_soon, &one);
    OK(wl_generate(session, &params, count, &one, &result));
    pthread_join(thread, NULL);
    CHECK(one.seen == WL_OK && result.finish == WL_FINISH_CANCELLED && result.tokens < 100000);
    OK(wl_session_free(session));

    /* Each thread has its own last error. */
    wl_model_free((wl_model *)&one);
    char before[256];
    snprintf(before, sizeof before, "%s", wl_last_error());
    int failed = 0;
    pthread_create(&thread, NULL, fail, &failed);
    pthread_join(thread, NULL);
    CHECK(failed && strcmp(before, wl_last_error()) == 0);
}

static void chatting(const wl_model *model, const char *folder)
{
    wl_session *session = greedy(model, 3), *other = greedy(model, 0);
    wl_generate_result result = {.size = sizeof result};
    wl_generate_params params;
    OK(wl_generate_params_init(&params, sizeof params));
    params.max_tokens = 24;
    size_t length;
    char json[4096];

    REFUSED(WL_ERROR_ARGUMENT, "there is no message to undo", wl_chat_undo(session));
    OK(wl_chat_say(session, "My name is Anna.", WL_ZERO_TERMINATED, &params, collect, empty(&one), &result));
    CHECK(one.length > 0);
    uint64_t here = position(session);
    OK(wl_chat_say(session, "What is my name?", WL_ZERO_TERMINATED, &params, collect, empty(&one), &result));
    CHECK(strstr(one.bytes, "Anna") != NULL);

    /* A turn that is undone and repeated gives the same answer, also after saving and loading into another session. */
    OK(wl_chat_undo(session));
    CHECK(position(session) == here);
    REFUSED(WL_ERROR_REWIND, "wl_chat_undo", wl_session_rewind(session, 0));
    char path[1024];
    snprintf(path, sizeof path, "%s/chat.state", folder);
    OK(wl_state_save(session, path));
    OK(wl_state_load(other, path));
    OK(wl_chat_say(session, "What is my name?", WL_ZERO_TERMINATED, &params, collect, empty(&two), &result));
    CHECK(strcmp(one.bytes, two.bytes) == 0);
    OK(wl_chat_start(other, "What is my name?", WL_ZERO_TERMINATED, &params));
    const char *piece;
    empty(&two);
    while (wl_generate_next(other, &piece, &length, &result) == WL_OK && piece)
        collect(piece, length, &two);
    CHECK(strcmp(one.bytes, two.bytes) == 0 && position(other) == position(session));
    OK(wl_chat_messages_json(other, json, sizeof json, &length));
    CHECK(json[0] == '[' && strstr(json, "{\"role\":\"user\",\"content\":\"What is my name?\"}") && strlen(json) == length);
    REFUSED(WL_ERROR_ROOM, "room", wl_chat_messages_json(other, json, length, &length));

    /* An answer that was interrupted is part of the conversation. */
    OK(wl_chat_start(other, "Tell me a story.", WL_ZERO_TERMINATED, &params));
    OK(wl_generate_next(other, &piece, &length, NULL));
    OK(wl_chat_say(other, "What is my name?", WL_ZERO_TERMINATED, &params, collect, empty(&two), &result));
    OK(wl_chat_messages_json(other, NULL, 0, &length));
    OK(wl_session_reset(other));
    OK(wl_chat_messages_json(other, json, sizeof json, &length));
    CHECK(strcmp(json, "[]") == 0);

    REFUSED(WL_ERROR_ARGUMENT, "not UTF-8", wl_chat_say(other, "\xff", 1, &params, NULL, NULL, NULL));
    OK(wl_session_free(other));
    OK(wl_session_free(session));
}

static void states(const wl_model *model, const char *folder)
{
    wl_session *session = greedy(model, 0), *other = greedy(model, 0);
    read_text(model, session, "Once upon a time there was a dog");
    size_t size, length, count;
    OK(wl_state_size(session, &size));
    unsigned char *state = malloc(size + 1);
    REFUSED(WL_ERROR_ROOM, "room", wl_state_write(session, state, size - 1, &length));
    CHECK(length == size);
    OK(wl_state_write(session, state, size, &length));
    OK(wl_state_read(other, state, length));
    uint32_t here, there;
    OK(wl_step(session, &here));
    OK(wl_step(other, &there));
    const float *a, *b;
    OK(wl_logits(session, &a, &count));
    OK(wl_logits(other, &b, &count));
    CHECK(here == there && memcmp(a, b, count * sizeof *a) == 0);

    /* Damaged, truncated or with other parameters: rejected, and the session is unchanged. */
    uint64_t before = position(other);
    for (size_t at = 0; at < size; at += size / 41 + 1) {
        state[at] ^= 0x40;
        CHECK(wl_state_read(other, state, size) == WL_ERROR_STATE);
        state[at] ^= 0x40;
        CHECK(wl_state_read(other, state, at) == WL_ERROR_STATE);
    }
    CHECK(position(other) == before);
    wl_session_params params;
    OK(wl_session_params_init(&params, sizeof params));
    params.history = 128;
    wl_session *third;
    OK(wl_session_new(model, &params, &third));
    REFUSED(WL_ERROR_STATE, "history", wl_state_read(third, state, size));
    char path[1024];
    snprintf(path, sizeof path, "%s/absent/state", folder);
    REFUSED(WL_ERROR_IO, "absent", wl_state_save(third, path));
    REFUSED(WL_ERROR_IO, "absent", wl_state_load(third, path));
    free(state);
    OK(wl_session_free(third));
    OK(wl_session_free(other));
    OK(wl_session_free(session));
}

struct log {
    int messages, opened, made;
    wl_status inside;
};

static void listen(wl_log_level level, const char *message, void *user)
{
    struct log *log = user;
    log->messages++;
    log->opened += level == WL_LOG_INFO && strstr(message, "opened the built-in model") != NULL;
    log->made += level == WL_LOG_DEBUG && strstr(message, "made a session") != NULL;
    log->inside = wl_set_log(WL_LOG_DEBUG, NULL, NULL);
}

static void logging(void)
{
    struct log log = {0};
    wl_model *model;
    OK(wl_set_log(WL_LOG_DEBUG, listen, &log));
    OK(wl_model_builtin(NULL, &model));
    OK(wl_session_free(greedy(model, 0)));
    CHECK(log.messages == 2 && log.opened == 1 && log.made == 1 && log.inside == WL_ERROR_BUSY);
    OK(wl_set_log(WL_LOG_INFO, listen, &log));
    OK(wl_session_free(greedy(model, 0)));
    CHECK(log.messages == 2);
    OK(wl_set_log(WL_LOG_INFO, NULL, NULL));
    OK(wl_model_free(model));
}

/* Sessions that step together give the same tokens as alone. */
static void batches(wl_model *model)
{
    wl_session *alone[2], *all[2];
    const char *prompts[2] = {"Once upon a time", "My name is"};
    for (int i = 0; i < 2; i++) {
        alone[i] = greedy(model, 0);
        read_text(model, alone[i], prompts[i]);
        OK(wl_session_fork(alone[i], &all[i]));
    }
    wl_batch *batch = NULL;
    uint32_t tokens[2], token;
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_batch_new(all[0], 2, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "1 to 1024", wl_batch_new(all[0], 0, &batch));
    OK(wl_batch_new(all[0], 2, &batch));
    for (int step = 0; step < 6; step++) {
        /* The second session joins later. */
        size_t count = step < 2 ? 1 : 2;
        OK(wl_batch_step(batch, all, count, tokens));
        for (size_t i = 0; i < count; i++) {
            OK(wl_step(alone[i], &token));
            CHECK(token == tokens[i]);
        }
    }
    OK(wl_batch_feed(batch, all, tokens, 2));
    OK(wl_batch_step(batch, all, 0, NULL));
    wl_session *twice[2] = {all[0], all[0]}, *three[3] = {all[0], all[1], alone[0]};
    uint32_t room[3];
    REFUSED(WL_ERROR_BUSY, "has not returned", wl_batch_step(batch, twice, 2, room));
    REFUSED(WL_ERROR_ARGUMENT, "up to 2", wl_batch_step(batch, three, 3, room));
    REFUSED(WL_ERROR_ARGUMENT, "sessions is NULL", wl_batch_step(batch, NULL, 1, room));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_batch_step(batch, all, 1, NULL));
    /* A late cancellation does not end the next call. */
    OK(wl_session_cancel(all[1]));
    OK(wl_batch_step(batch, all, 2, tokens));
    OK(wl_batch_free(batch));
    REFUSED(WL_ERROR_HANDLE, "freed", wl_batch_step(batch, all, 2, tokens));
    OK(wl_batch_free(NULL));
    for (int i = 0; i < 2; i++) {
        OK(wl_session_free(alone[i]));
        OK(wl_session_free(all[i]));
    }
}

/* Tokens that a callback collects. */
struct seen {
    struct text text;
    uint32_t tokens[64];
    float logprobs[64];
    size_t count, stop_after;
    uint32_t forbidden;
    int calls;
};

static struct seen seen_one, seen_two;

static int see_token(uint32_t token, float logprob, const char *text, size_t length, void *user)
{
    struct seen *seen = user;
    seen->tokens[seen->count] = token;
    seen->logprobs[seen->count++] = logprob;
    collect(text, length, &seen->text);
    return seen->count == seen->stop_after;
}

static void forbid(float *logits, size_t count, void *user)
{
    struct seen *seen = user;
    CHECK(seen->forbidden < count);
    logits[seen->forbidden] = -1e30f;
    seen->calls++;
}

/* Callbacks see and change a generation token by token. */
static void hooks(const wl_model *model)
{
    wl_session *session = greedy(model, 0), *fork, *third;
    read_text(model, session, "Once upon a time");
    OK(wl_session_fork(session, &fork));
    OK(wl_session_fork(session, &third));
    memset(&seen_one, 0, sizeof seen_one);
    memset(&seen_two, 0, sizeof seen_two);
    wl_generate_params params;
    OK(wl_generate_params_init(&params, sizeof params));
    CHECK(params.logprobs == 0 && params.on_token == NULL && params.on_logits == NULL && params.user == NULL);
    params.max_tokens = 12;
    params.ignore_end = 1;
    params.on_token = see_token;
    params.user = &seen_one;
    params.logprobs = 1;
    OK(wl_generate(session, &params, collect, empty(&one), NULL));
    CHECK(seen_one.count == 12 && strcmp(seen_one.text.bytes, one.bytes) == 0);
    for (int i = 0; i < 12; i++) {
        uint32_t token;
        OK(wl_step(fork, &token));
        /* The most probable of a few thousand tokens. */
        CHECK(seen_one.tokens[i] == token && seen_one.logprobs[i] <= 0 && seen_one.logprobs[i] > -9);
    }
    /* The first token chosen before is forbidden; the text is pulled, and stopped after three tokens. */
    params.logprobs = 0;
    params.on_logits = forbid;
    params.user = &seen_two;
    seen_two.forbidden = seen_one.tokens[0];
    seen_two.stop_after = 3;
    OK(wl_generate_start(third, &params));
    const char *text;
    size_t length;
    wl_generate_result result = {.size = sizeof result};
    do
        OK(wl_generate_next(third, &text, &length, &result));
    while (text);
    CHECK(seen_two.count == 3 && seen_two.calls == 3 && result.tokens == 3 && result.finish == WL_FINISH_CALLBACK);
    CHECK(seen_two.tokens[0] != seen_one.tokens[0] && seen_two.logprobs[0] != seen_two.logprobs[0]);
    OK(wl_session_free(session));
    OK(wl_session_free(fork));
    OK(wl_session_free(third));

    /* Drafts do not change the text. */
    wl_session_params drafting;
    OK(wl_session_params_init(&drafting, sizeof drafting));
    wl_sampler_params sampler;
    OK(wl_sampler_params_init(&sampler, sizeof sampler));
    sampler.temperature = 0;
    drafting.sampler = &sampler;
    drafting.threads = 1;
    drafting.lookup = 6;
    OK(wl_session_new(model, &drafting, &session));
    third = greedy(model, 0);
    const char *repeated = "The cat sat on the mat. The cat sat on the mat. The cat sat on";
    read_text(model, session, repeated);
    read_text(model, third, repeated);
    OK(wl_generate_params_init(&params, sizeof params));
    params.max_tokens = 40;
    params.ignore_end = 1;
    OK(wl_generate(session, &params, collect, empty(&one), NULL));
    OK(wl_generate(third, &params, collect, empty(&two), NULL));
    CHECK(strcmp(one.bytes, two.bytes) == 0);
    wl_session_info info = {.size = sizeof info};
    OK(wl_session_get_info(session, &info));
    CHECK(info.drafted > 0 && info.accepted <= info.drafted);
    /* A generation that is abandoned has read exactly the tokens it has shown. */
    for (int i = 0; i < 3; i++) {
        OK(wl_generate_start(session, &params));
        OK(wl_generate_start(third, &params));
        for (int piece = 0; piece < 2 + i; piece++) {
            OK(wl_generate_next(session, &text, &length, NULL));
            OK(wl_generate_next(third, &text, &length, NULL));
        }
        OK(wl_session_checkpoint(session));
        OK(wl_session_checkpoint(third));
        CHECK(position(session) == position(third));
    }
    OK(wl_session_free(session));
    OK(wl_session_free(third));
    drafting.mtp = 2;
    REFUSED(WL_ERROR_ARGUMENT, "choose one", wl_session_new(model, &drafting, &session));
    drafting.lookup = 0;
    REFUSED(WL_ERROR_UNSUPPORTED, "MTP", wl_session_new(model, &drafting, &session));
}

/* Answers of two conversations that step together. */
static void batched_text(wl_model *model)
{
    wl_session *alone[2], *all[2];
    const char *messages[2] = {"My name is Anna.", "Tell me a story."};
    wl_generate_params params;
    OK(wl_generate_params_init(&params, sizeof params));
    for (int i = 0; i < 2; i++) {
        alone[i] = greedy(model, 0);
        all[i] = greedy(model, 0);
        params.max_tokens = i == 0 ? 8 : 20;
        OK(wl_chat_start(all[i], messages[i], WL_ZERO_TERMINATED, &params));
    }
    wl_batch *batch = NULL;
    OK(wl_batch_new(alone[0], 2, &batch));
    const char *texts[2];
    size_t lengths[2];
    memset(&one, 0, sizeof one);
    memset(&two, 0, sizeof two);
    int rounds = 0;
    do {
        OK(wl_batch_generate(batch, all, 2, texts, lengths));
        for (int i = 0; i < 2; i++)
            if (texts[i])
                collect(texts[i], lengths[i], i == 0 ? &one : &two);
        rounds++;
    } while (texts[0] || texts[1]);
    CHECK(rounds <= 21);
    static struct text expected;
    for (int i = 0; i < 2; i++) {
        wl_generate_result result = {.size = sizeof result}, lonely = {.size = sizeof lonely};
        const char *text;
        size_t length;
        OK(wl_generate_next(all[i], &text, &length, &result));
        params.max_tokens = i == 0 ? 8 : 20;
        OK(wl_chat_say(alone[i], messages[i], WL_ZERO_TERMINATED, &params, collect, empty(&expected), &lonely));
        CHECK(text == NULL && strcmp(expected.bytes, i == 0 ? one.bytes : two.bytes) == 0);
        CHECK(result.finish == lonely.finish && result.tokens == lonely.tokens && position(all[i]) == position(alone[i]));
        char mine[2048], theirs[2048];
        OK(wl_chat_messages_json(all[i], mine, sizeof mine, &length));
        OK(wl_chat_messages_json(alone[i], theirs, sizeof theirs, &length));
        CHECK(strcmp(mine, theirs) == 0);
    }
    REFUSED(WL_ERROR_ARGUMENT, "no generation", wl_batch_generate(batch, alone, 1, texts, lengths));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_batch_generate(batch, all, 2, NULL, lengths));
    params.logprobs = 1;
    OK(wl_generate_start(all[0], &params));
    REFUSED(WL_ERROR_UNSUPPORTED, "log-probabilities", wl_batch_generate(batch, all, 1, texts, lengths));
    OK(wl_batch_free(batch));
    for (int i = 0; i < 2; i++) {
        OK(wl_session_free(alone[i]));
        OK(wl_session_free(all[i]));
    }
}

/* The inputs of a model's template other than the messages. */
static void templates(const wl_model *model)
{
    wl_session *session = greedy(model, 0);
    OK(wl_chat_thinking(session, 0));
    OK(wl_chat_thinking(session, 1));
    OK(wl_chat_thinking(session, -1));
    REFUSED(WL_ERROR_ARGUMENT, "thinking", wl_chat_thinking(session, 2));
    OK(wl_chat_variable(session, "reasoning_effort", "\"low\""));
    OK(wl_chat_variable(session, "reasoning_effort", NULL));
    OK(wl_chat_variable(session, "enable_thinking", "false"));
    REFUSED(WL_ERROR_ARGUMENT, "enable_thinking", wl_chat_variable(session, "enable_thinking", "7"));
    REFUSED(WL_ERROR_ARGUMENT, "messages", wl_chat_variable(session, "messages", "[]"));
    REFUSED(WL_ERROR_ARGUMENT, "x: ", wl_chat_variable(session, "x", "{"));
    REFUSED(WL_ERROR_ARGUMENT, "name", wl_chat_variable(session, NULL, "1"));
    const char *tools = "[{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{}}}]";
    OK(wl_chat_tools(session, tools, WL_ZERO_TERMINATED));
    REFUSED(WL_ERROR_ARGUMENT, "the tools", wl_chat_tools(session, "{", 1));
    REFUSED(WL_ERROR_ARGUMENT, "the tools", wl_chat_tools(session, "7", 1));
    OK(wl_chat_say(session, "Hello!", WL_ZERO_TERMINATED, NULL, collect, empty(&one), NULL));
    CHECK(one.length > 0);
    OK(wl_chat_tools(session, "[]", 2));
    OK(wl_session_free(session));
}

/* The answer to a greeting. */
static const char *greeted(wl_session *session, struct text *into)
{
    OK(wl_chat_say(session, "Hello!", WL_ZERO_TERMINATED, NULL, collect, empty(into), NULL));
    return into->bytes;
}

static int constrained(wl_session *session, wl_constraint kind, const char *grammar)
{
    return wl_session_constrain(session, kind, grammar, WL_ZERO_TERMINATED);
}

static void forms(wl_model *model)
{
    const char *schema = "{\"type\": \"object\", \"properties\": {\"age\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 9}}, "
                         "\"required\": [\"age\"], \"additionalProperties\": false}";
    wl_session *session = greedy(model, 0), *fork = NULL;
    OK(constrained(session, WL_CONSTRAINT_JSON_SCHEMA, schema));
    CHECK(strncmp(greeted(session, &one), "{\"age\": ", 8) == 0 && one.length == 10 && one.bytes[9] == '}');
    OK(constrained(session, WL_CONSTRAINT_REGEX, "(yes|no), [a-c]{3}"));
    OK(wl_session_fork(session, &fork));
    CHECK((strncmp(greeted(session, &one), "yes, ", 5) == 0 || strncmp(one.bytes, "no, ", 4) == 0) && one.length <= 8);
    CHECK(strcmp(one.bytes, greeted(fork, &two)) == 0);
    OK(constrained(session, WL_CONSTRAINT_LARK, "start: \"a\" B B?\nB: /[0-9]{2}/"));
    CHECK(greeted(session, &one)[0] == 'a' && (one.length == 3 || one.length == 5));
    wl_generate_params params;
    OK(wl_generate_params_init(&params, sizeof params));
    params.max_tokens = 2;
    OK(wl_session_constrain(session, WL_CONSTRAINT_JSON_OBJECT, NULL, 0));
    OK(wl_chat_say(session, "Hello!", WL_ZERO_TERMINATED, &params, collect, empty(&one), NULL));
    CHECK(one.bytes[0] == '{');

    /* An invalid constraint keeps the previous one. */
    REFUSED(WL_ERROR_ARGUMENT, "expected a wl_constraint", wl_session_constrain(session, 5, NULL, 0));
    REFUSED(WL_ERROR_ARGUMENT, "not JSON", constrained(session, WL_CONSTRAINT_JSON_SCHEMA, "{"));
    REFUSED(WL_ERROR_ARGUMENT, "grammar", constrained(session, WL_CONSTRAINT_JSON_SCHEMA, "false"));
    REFUSED(WL_ERROR_ARGUMENT, "grammar", constrained(session, WL_CONSTRAINT_REGEX, "("));
    REFUSED(WL_ERROR_ARGUMENT, "grammar", constrained(session, WL_CONSTRAINT_LARK, "start: absent"));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", constrained(session, WL_CONSTRAINT_REGEX, NULL));
    OK(wl_chat_say(session, "Hello!", WL_ZERO_TERMINATED, &params, collect, empty(&one), NULL));
    CHECK(one.bytes[0] == '{');
    OK(wl_session_reset(session));
    OK(wl_chat_say(session, "Hello!", WL_ZERO_TERMINATED, &params, collect, empty(&one), NULL));
    CHECK(one.bytes[0] == '{');
    OK(wl_session_reset(session));
    OK(wl_session_constrain(session, WL_CONSTRAINT_NONE, NULL, 0));
    CHECK(greeted(session, &one)[0] != '{');

    /* In a batch as alone, next to an unconstrained answer. */
    wl_session *all[2] = {greedy(model, 0), greedy(model, 0)}, *alone = greedy(model, 0);
    OK(constrained(all[0], WL_CONSTRAINT_JSON_SCHEMA, schema));
    OK(constrained(alone, WL_CONSTRAINT_JSON_SCHEMA, schema));
    wl_batch *batch = NULL;
    OK(wl_batch_new(alone, 2, &batch));
    for (int i = 0; i < 2; i++)
        OK(wl_chat_start(all[i], "Hello!", WL_ZERO_TERMINATED, NULL));
    const char *texts[2];
    size_t lengths[2];
    static struct text found[2];
    do {
        OK(wl_batch_generate(batch, all, 2, texts, lengths));
        for (int i = 0; i < 2; i++)
            if (texts[i])
                collect(texts[i], lengths[i], &found[i]);
    } while (texts[0] || texts[1]);
    CHECK(strcmp(found[0].bytes, greeted(alone, &two)) == 0 && strcmp(found[1].bytes, one.bytes) == 0);
    OK(wl_batch_free(batch));
    for (int i = 0; i < 2; i++)
        OK(wl_session_free(all[i]));
    OK(wl_session_free(alone));
    OK(wl_session_free(fork));
    OK(wl_session_free(session));
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : ".";
    versions_and_names();
    wl_model *model = NULL;
    OK(wl_model_builtin(NULL, &model));
    const char *name, *json, *device, *notes;
    OK(wl_model_name(model, &name));
    OK(wl_model_spec_json(model, &json));
    OK(wl_model_device(model, &device));
    OK(wl_model_notes(model, &notes));
    CHECK(notes[0] == '\0');
    CHECK(strstr(device, "CPU (no GPU: ") == device);
    CHECK(strlen(name) > 0 && json[0] == '{' && strstr(json, "\"layers\""));
    handles(model);
    null_pointers(model);
    sizes_of_structs(model);
    parameters_out_of_range(model);
    files(folder);
    text(model);
    reading(model);
    batches(model);
    generating(model);
    hooks(model);
    batched_text(model);
    templates(model);
    forms(model);
    progress(model);
    history(model);
    stores(model, folder);
    forked_store(model, folder);
    samplers(model);
    threads(model);
    chatting(model, folder);
    states(model, folder);
    logging();
    OK(wl_model_free(model));
    printf("%d failures\n", failures);
    return failures != 0;
}
