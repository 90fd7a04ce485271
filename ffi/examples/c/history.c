/*
 * Continues a conversation from elsewhere: reads the history at once, shows the progress, and prints the answer with its timings.
 *
 *   cc history.c -o history $(pkg-config --cflags --libs waterline)
 *   ./history [MODEL.gguf]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <waterline.h>

static void check(wl_status status)
{
    if (status == WL_OK)
        return;
    fprintf(stderr, "history: %s: %s\n", wl_status_name(status), wl_last_error());
    exit(1);
}

static int progress(uint64_t read, uint64_t total, void *user)
{
    fprintf(user, "read %" PRIu64 " of %" PRIu64 "\n", read, total);
    return 0; /* anything else cancels */
}

static int show(const char *text, size_t length, void *user)
{
    return fwrite(text, 1, length, user) != length;
}

int main(int argc, char **argv)
{
    static const wl_message said[] = {
        {"user", "My name is Anna. I have a cat called Miso."},
        {"assistant", "Nice to meet you, Anna! Miso is a lovely name for a cat."},
    };
    wl_model *model;
    check(argc > 1 ? wl_model_open(argv[1], NULL, &model) : wl_model_builtin(NULL, &model));

    wl_sampler_params sampler;
    check(wl_sampler_params_init(&sampler, sizeof sampler));
    sampler.seed = 42; /* the same words in every run; without it each session draws a new seed */
    sampler.temperature = 0.1f;
    wl_session_params params;
    check(wl_session_params_init(&params, sizeof params));
    params.sampler = &sampler;
    wl_session *session;
    check(wl_session_new(model, &params, &session));

    check(wl_session_set_progress(session, progress, stderr));
    check(wl_chat_set_messages(session, said, sizeof said / sizeof *said));
    check(wl_session_set_progress(session, NULL, NULL));

    wl_generate_result result = {.size = sizeof result};
    check(wl_chat_say(session, "What is my cat called?", WL_ZERO_TERMINATED, NULL, show, stdout, &result));
    check(wl_session_get_sampler(session, &sampler));
    printf("\n%" PRIu64 " tokens in %.3f s after a message of %" PRIu64 " in %.3f s, seed %" PRIu64 "\n", result.tokens,
           result.seconds, result.prompt_tokens, result.prompt_seconds, sampler.seed);
    check(wl_session_free(session));
    check(wl_model_free(model));
    return 0;
}
