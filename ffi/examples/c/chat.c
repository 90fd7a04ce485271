/*
 * Talks to a model: one message per line, until the end of the input. "/undo" removes the last turn.
 *
 *   cc chat.c -o chat $(pkg-config --cflags --libs waterline)
 *   ./chat [MODEL.gguf]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waterline.h>

/* Every call returns a status; on failure this prints the library's sentence and exits. */
static void check(wl_status status)
{
    if (status == WL_OK)
        return;
    fprintf(stderr, "chat: %s: %s\n", wl_status_name(status), wl_last_error());
    exit(1);
}

/* Shows a piece of the answer; a nonzero result would stop it. */
static int show(const char *text, size_t length, void *user)
{
    fwrite(text, 1, length, user);
    fflush(user);
    return 0;
}

int main(int argc, char **argv)
{
    if (wl_abi_version() != WL_ABI_VERSION) {
        fprintf(stderr, "chat: the library is not the one that this program was built for\n");
        return 1;
    }

    wl_model *model;
    if (argc > 1)
        check(wl_model_open(argv[1], NULL, &model));
    else
        check(wl_model_builtin(NULL, &model));

    wl_sampler_params sampler;
    check(wl_sampler_params_init(&sampler, sizeof sampler));
    sampler.temperature = 0; /* always choose the most probable token */

    wl_session_params params;
    check(wl_session_params_init(&params, sizeof params));
    params.marks = 4; /* makes /undo a copy */
    params.sampler = &sampler;

    wl_session *session;
    check(wl_session_new(model, &params, &session));
    check(wl_model_free(model)); /* the session keeps the parts it needs */

    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "/undo") == 0) {
            check(wl_chat_undo(session));
            continue;
        }
        wl_generate_result result = {.size = sizeof result};
        check(wl_chat_say(session, line, WL_ZERO_TERMINATED, NULL, show, stdout, &result));
        puts(result.finish == WL_FINISH_LENGTH ? " ..." : "");
    }

    wl_session_info info = {.size = sizeof info};
    check(wl_session_get_info(session, &info));
    fprintf(stderr, "%llu tokens read, %llu bytes of state\n", (unsigned long long)info.position,
            (unsigned long long)info.state_bytes);
    check(wl_session_free(session));
    return 0;
}
