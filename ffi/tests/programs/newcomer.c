/*
 * The program of a newcomer who has read only README.md and waterline.h: it completes a text, choosing each token itself,
 * and talks like a server, where each request brings the complete history.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waterline.h>

#define CHECK(call)                                                             \
    do {                                                                        \
        if ((call) != WL_OK) {                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, wl_last_error());        \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

/* Completes a text with the most probable token that is not forbidden. */
static void complete(wl_model *model, const char *text, uint32_t forbidden)
{
    wl_session *session;
    uint32_t prompt[256];
    size_t count;
    CHECK(wl_session_new(model, NULL, &session));
    CHECK(wl_tokenize(model, text, strlen(text), 0, prompt, 256, &count));
    CHECK(wl_feed(session, prompt, count, NULL));
    for (int i = 0; i < 8; i++) {
        const float *logits;
        size_t vocab, best = forbidden == 0;
        CHECK(wl_logits(session, &logits, &vocab));
        for (size_t token = 0; token < vocab; token++)
            if (token != forbidden && logits[token] > logits[best])
                best = token;
        uint32_t token = (uint32_t)best;
        const char *bytes;
        size_t length;
        CHECK(wl_token_bytes(model, token, &bytes, &length));
        fwrite(bytes, 1, length, stdout);
        CHECK(wl_feed(session, &token, 1, NULL));
    }
    puts("");
    CHECK(wl_session_free(session));
}

static int append(const char *text, size_t length, void *user)
{
    strncat(user, text, length);
    return 0;
}

int main(void)
{
    wl_model *model;
    CHECK(wl_model_builtin(NULL, &model));
    complete(model, "Once upon a time", (uint32_t)-1);

    wl_sampler_params sampler;
    CHECK(wl_sampler_params_init(&sampler, sizeof sampler));
    sampler.temperature = 0;
    wl_session_params params;
    CHECK(wl_session_params_init(&params, sizeof params));
    params.sampler = &sampler;
    wl_session *session;
    CHECK(wl_session_new(model, &params, &session));
    static char answers[2][2000];
    wl_message history[4] = {{"user", "My name is Anna."}, {"assistant", answers[0]}, {"user", "What is my name?"}};
    wl_generate_result result = {.size = sizeof result};
    for (size_t turn = 0; turn < 2; turn++) {
        CHECK(wl_chat_set_messages(session, history, 2 * turn));
        CHECK(wl_chat_say(session, history[2 * turn].content, WL_ZERO_TERMINATED, NULL, append, answers[turn], &result));
        printf("%s\n", answers[turn]);
    }
    /* The second request read only its new message. */
    printf("%s\n", result.prompt_tokens < 20 ? "short" : "long");
    CHECK(wl_session_free(session));
    CHECK(wl_model_free(model));
    return 0;
}
