/*
 * Token by token: log-probabilities, a callback that forbids a token, drafts, and answers of two sessions that step together.
 *
 *   cc tokens.c -o tokens $(pkg-config --cflags --libs waterline)
 *   ./tokens [MODEL.gguf]
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <waterline.h>

static void check(wl_status status)
{
    if (status == WL_OK)
        return;
    fprintf(stderr, "tokens: %s: %s\n", wl_status_name(status), wl_last_error());
    exit(1);
}

static wl_session *new_session(const wl_model *model, uint32_t lookup)
{
    wl_sampler_params sampler;
    check(wl_sampler_params_init(&sampler, sizeof sampler));
    sampler.temperature = 0;
    wl_session_params params;
    check(wl_session_params_init(&params, sizeof params));
    params.sampler = &sampler;
    params.lookup = lookup;
    wl_session *session;
    check(wl_session_new(model, &params, &session));
    return session;
}

static void read_text(const wl_model *model, wl_session *session, const char *text)
{
    uint32_t tokens[256];
    size_t count;
    check(wl_tokenize(model, text, WL_ZERO_TERMINATED, 0, tokens, sizeof tokens / sizeof *tokens, &count));
    check(wl_feed(session, tokens, count, NULL));
}

static int show_token(uint32_t token, float logprob, const char *text, size_t length, void *user)
{
    (void)user;
    printf("%8" PRIu32 "  %6.3f  \"%.*s\"\n", token, (double)logprob, (int)length, text);
    return 0; /* anything else stops after this token */
}

/* Forbids the token that `user` points to. */
static void forbid(float *logits, size_t count, void *user)
{
    uint32_t token = *(uint32_t *)user;
    if (token < count)
        logits[token] = -INFINITY;
}

int main(int argc, char **argv)
{
    wl_model *model;
    check(argc > 1 ? wl_model_open(argv[1], NULL, &model) : wl_model_builtin(NULL, &model));
    wl_generate_params params;
    check(wl_generate_params_init(&params, sizeof params));

    /* The model's next tokens and their probabilities, and its choice when the first token is forbidden. */
    params.max_tokens = 4;
    params.logprobs = 1;
    params.on_token = show_token;
    wl_session *session = new_session(model, 0), *fork;
    read_text(model, session, "Once upon a time");
    check(wl_session_fork(session, &fork));
    uint32_t first;
    check(wl_sample(session, &first));
    check(wl_generate(session, &params, NULL, NULL, NULL));
    printf("without %" PRIu32 ":\n", first);
    params.on_logits = forbid;
    params.user = &first;
    check(wl_generate(fork, &params, NULL, NULL, NULL));
    check(wl_session_free(session));
    check(wl_session_free(fork));

    /* Drafts: the text is the same, and faster where it repeats itself. */
    check(wl_generate_params_init(&params, sizeof params));
    params.max_tokens = 40;
    session = new_session(model, 8);
    read_text(model, session, "The cat sat on the mat. The cat sat on the mat. The cat sat on");
    check(wl_generate(session, &params, NULL, NULL, NULL));
    wl_session_info info = {.size = sizeof info};
    check(wl_session_get_info(session, &info));
    printf("%" PRIu64 " of %" PRIu64 " drafted tokens were right\n", info.accepted, info.drafted);
    check(wl_session_free(session));

    /* Two answers, with one pass over the weights per token of both. */
    wl_session *both[2];
    const char *messages[2] = {"My name is Anna.", "What is the color of the sky?"};
    for (int i = 0; i < 2; i++) {
        both[i] = new_session(model, 0);
        check(wl_chat_start(both[i], messages[i], WL_ZERO_TERMINATED, NULL));
    }
    wl_batch *batch;
    check(wl_batch_new(both[0], 2, &batch));
    char answers[2][4096] = {"", ""};
    size_t used[2] = {0, 0};
    for (;;) {
        const char *texts[2];
        size_t lengths[2];
        check(wl_batch_generate(batch, both, 2, texts, lengths));
        if (texts[0] == NULL && texts[1] == NULL)
            break;
        for (int i = 0; i < 2; i++)
            if (texts[i])
                used[i] += (size_t)snprintf(answers[i] + used[i], sizeof answers[i] - used[i], "%s", texts[i]);
    }
    for (int i = 0; i < 2; i++) {
        printf("%s -> %s\n", messages[i], answers[i]);
        check(wl_session_free(both[i]));
    }
    check(wl_batch_free(batch));
    check(wl_model_free(model));
    return 0;
}
