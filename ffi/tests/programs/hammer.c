/*
 * Random calls with handles that are live, freed, of another kind or invalid, and with numbers of any size. Each call
 * returns a status and, if it fails, sets a sentence; no call succeeds with a handle that is not live.
 *
 *   hammer COUNT SEED MODEL
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waterline.h>

enum { SESSIONS = 6, BATCHES = 3, STATE = 1 << 20 };

static wl_model *model;
static wl_session *sessions[SESSIONS];
static wl_batch *batches[BATCHES];
static void *freed;
static uint64_t random_state;
static unsigned char state[STATE];
static size_t state_length;
static long failed, succeeded;

static uint32_t next(uint32_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

/* Returns a handle; `lives` is set to whether it is live and of its kind. */
static void *handle(void *live, int *lives)
{
    void *others[] = {NULL, freed, &random_state, (void *)(uintptr_t)0x12345679, model, (char *)live + 1};
    *lives = live != NULL && next(8) != 0;
    if (*lives)
        return live;
    void *other = others[next(6)];
    return other == live ? NULL : other;
}

static uint64_t number(void)
{
    static const uint64_t numbers[] = {0, 1, 2, 3, 17, 100000, UINT32_MAX, UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 63};
    return numbers[next(10)];
}

static int check(wl_status status, int may, const char *what)
{
    if (status < 0 || status > 15 || status == WL_ERROR_INTERNAL || (status == WL_OK && !may) || (status != WL_OK && !*wl_last_error())) {
        fprintf(stderr, "hammer: %s: %s: %s\n", what, wl_status_name(status), wl_last_error());
        exit(1);
    }
    *(status == WL_OK ? &succeeded : &failed) += 1;
    return status == WL_OK;
}

static void call(void)
{
    int lives, is_model, at = (int)next(SESSIONS);
    wl_session *session = handle(sessions[at], &lives);
    wl_model *some = handle(model, &is_model);
    uint32_t tokens[4] = {next(40), next(400), next(40), (uint32_t)number()};
    size_t count = 0;
    if (some == model)
        is_model = 1;
    switch (next(30)) {
    case 0: {
        wl_session_params params;
        check(wl_session_params_init(&params, sizeof params), 1, "wl_session_params_init");
        params.threads = 1;
        params.context = 64;
        wl_session *made = NULL;
        if (sessions[at] == NULL && check(wl_session_new(some, &params, &made), is_model, "wl_session_new"))
            sessions[at] = made;
        break;
    }
    case 1:
        if (next(4) == 0 && check(wl_session_free(session), lives || session == NULL, "wl_session_free") && lives) {
            freed = session;
            sessions[at] = NULL;
        }
        break;
    case 2: {
        wl_session *fork = NULL;
        int to = (int)next(SESSIONS);
        if (sessions[to] == NULL && check(wl_session_fork(session, &fork), lives, "wl_session_fork"))
            sessions[to] = fork;
        break;
    }
    case 3: check(wl_session_reset(session), lives, "wl_session_reset"); break;
    case 4: {
        wl_session_info info = {.size = (uint32_t)(next(8) ? sizeof info : number())};
        check(wl_session_get_info(session, &info), lives, "wl_session_get_info");
        break;
    }
    case 5: check(wl_feed(session, tokens, next(5), &count), lives, "wl_feed"); break;
    case 6: {
        const float *logits = NULL;
        check(wl_logits(session, &logits, &count), lives, "wl_logits");
        break;
    }
    case 7: check(wl_step(session, next(8) ? tokens : NULL), lives, "wl_step"); break;
    case 8: check(wl_sample(session, next(8) ? tokens : NULL), lives, "wl_sample"); break;
    case 26: check(wl_session_constrain(session, next(7), next(2) ? "[a-c]{2}" : "{}", next(9)), lives, "wl_session_constrain"); break;
    case 9: check(wl_session_mark(session), lives, "wl_session_mark"); break;
    case 10: check(wl_session_rewind(session, number()), lives, "wl_session_rewind"); break;
    case 11: check(wl_state_size(session, &count), lives, "wl_state_size"); break;
    case 12:
        if (check(wl_state_write(session, state, next(4) ? STATE : next(STATE), &count), lives, "wl_state_write"))
            state_length = count;
        break;
    case 13:
        if (state_length > 0 && next(2))
            state[next((uint32_t)state_length)] ^= (unsigned char)(1 << next(8));
        check(wl_state_read(session, state, next(4) ? state_length : next(STATE)), lives && state_length > 0, "wl_state_read");
        break;
    case 14: {
        int to = (int)next(BATCHES);
        if (batches[to] == NULL)
            check(wl_batch_new(session, 1 + next(4), &batches[to]), lives, "wl_batch_new");
        else if (next(4) == 0 && check(wl_batch_free(batches[to]), 1, "wl_batch_free"))
            batches[to] = NULL;
        break;
    }
    case 15: {
        int is_batch, other;
        wl_batch *batch = handle(batches[next(BATCHES)], &is_batch);
        wl_session *both[] = {session, handle(sessions[next(SESSIONS)], &other)};
        size_t used = 1 + next(2);
        int may = is_batch && lives && (used == 1 || other);
        check(next(2) ? wl_batch_step(batch, both, used, tokens) : wl_batch_feed(batch, both, tokens, used), may, "wl_batch_step");
        break;
    }
    case 16: {
        wl_plan plan = {.size = sizeof plan};
        check(wl_plan_model(some, NULL, &plan), is_model, "wl_plan_model");
        break;
    }
    case 17: {
        wl_model_info info = {.size = (uint32_t)(next(8) ? sizeof info : number())};
        check(wl_model_get_info(some, &info), is_model, "wl_model_get_info");
        break;
    }
    case 18: check(wl_tokenize(some, "Hello", next(6), 0, tokens, 4, &count), is_model, "wl_tokenize"); break;
    case 19: {
        const char *bytes = NULL;
        check(wl_token_bytes(some, (uint32_t)number(), &bytes, &count), is_model, "wl_token_bytes");
        break;
    }
    case 20: check(wl_session_cancel(session), lives, "wl_session_cancel"); break;
    case 21: check(wl_session_clear_cancel(session), lives, "wl_session_clear_cancel"); break;
    case 22: {
        wl_sampler_params params;
        check(wl_sampler_params_init(&params, next(8) ? sizeof params : (size_t)number()), 1, "wl_sampler_params_init");
        params.size = sizeof params;
        params.temperature = (float)next(3) - 0.5f;
        params.seed = number();
        check(wl_session_set_sampler(session, &params), lives, "wl_session_set_sampler");
        check(wl_session_get_sampler(session, &params), lives, "wl_session_get_sampler");
        break;
    }
    case 23: {
        const char *text = NULL;
        wl_generate_result result = {.size = sizeof result};
        check(wl_generate_next(session, &text, &count, &result), lives, "wl_generate_next");
        break;
    }
    case 24: check(wl_chat_undo(session), lives, "wl_chat_undo"); break;
    case 27: check(wl_chat_tools(session, next(2) ? "[]" : "[{\"name\": \"f\"}]", next(13)), lives, "wl_chat_tools"); break;
    case 28: {
        const char *results[] = {"1", next(4) ? "2" : NULL};
        check(wl_chat_results(session, next(4) ? results : NULL, next(3)), lives, "wl_chat_results");
        check(wl_chat_variable(session, next(4) ? "x" : "tools", next(4) ? "1" : "["), lives, "wl_chat_variable");
        break;
    }
    case 29: {
        static const char text[] = "<think>a</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        wl_answer_parser *parser = NULL;
        wl_answer_part part = {.size = (uint32_t)(next(8) ? sizeof part : number())};
        const char *json = NULL;
        int made = check(wl_chat_parse(session, text, next(sizeof text), next(3), &parser), lives, "wl_chat_parse");
        check(wl_answer_next(parser, &part), made, "wl_answer_next");
        check(wl_answer_json(parser, &json, &count), made, "wl_answer_json");
        check(wl_answer_parser_free(parser), 1, "wl_answer_parser_free");
        check(wl_answer_push(parser, text, 3), 0, "wl_answer_push");
        break;
    }
    default:
        if (!*wl_status_name((int32_t)number()))
            exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    random_state = strtoull(argv[2], NULL, 10);
    long count = strtol(argv[1], NULL, 10);
    if (wl_model_open(argv[3], NULL, &model) != WL_OK) {
        fprintf(stderr, "hammer: %s\n", wl_last_error());
        return 1;
    }
    for (long i = 0; i < count; i++)
        call();
    for (int i = 0; i < BATCHES; i++)
        wl_batch_free(batches[i]);
    for (int i = 0; i < SESSIONS; i++)
        wl_session_free(sessions[i]);
    wl_model_free(model);
    printf("%ld calls, %ld succeeded, %ld refused\n", succeeded + failed, succeeded, failed);
    return 0;
}
