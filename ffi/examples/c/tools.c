/*
 * Lets a model call functions: prints its content as it arrives, runs the functions that it calls, and sends their results, until an answer
 * calls none.
 *
 *   cc tools.c -o tools $(pkg-config --cflags --libs waterline)
 *   ./tools MODEL.gguf "How much is 17 times 23?"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <waterline.h>

#define MOST_CALLS 16
#define MOST_ROUNDS 8

static const char schemas[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"multiply\", \"description\": \"Multiplies two numbers.\","
    "  \"parameters\": {\"type\": \"object\", \"required\": [\"a\", \"b\"],"
    "    \"properties\": {\"a\": {\"type\": \"number\"}, \"b\": {\"type\": \"number\"}}}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"year\", \"description\": \"The current year.\","
    "  \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";

struct call {
    char name[64], arguments[1024], result[64];
};

/* The answer so far. */
struct answer {
    wl_answer_parser *parser;
    struct call calls[MOST_CALLS];
    size_t count;
};

static void check(wl_status status)
{
    if (status == WL_OK)
        return;
    fprintf(stderr, "tools: %s: %s\n", wl_status_name(status), wl_last_error());
    exit(1);
}

static void append(char *to, size_t room, const char *text, size_t length)
{
    if (strlen(to) + length < room)
        strncat(to, text, length);
}

/* Takes the parts that the text so far completes. */
static void take(struct answer *answer)
{
    wl_answer_part part = {.size = sizeof part};
    for (;;) {
        check(wl_answer_next(answer->parser, &part));
        if (part.kind == WL_PART_NONE)
            return;
        if (part.kind == WL_PART_CONTENT)
            fwrite(part.text, 1, part.length, stdout);
        if (part.call >= MOST_CALLS)
            continue;
        struct call *call = &answer->calls[part.call];
        if (part.kind == WL_PART_CALL_BEGINS) {
            memset(call, 0, sizeof *call);
            append(call->name, sizeof call->name, part.text, part.length);
        }
        if (part.kind == WL_PART_CALL_ARGUMENTS)
            append(call->arguments, sizeof call->arguments, part.text, part.length);
        if (part.kind == WL_PART_CALL_ENDS)
            answer->count = part.call + 1;
    }
}

static int show(const char *text, size_t length, void *user)
{
    struct answer *answer = user;
    check(wl_answer_push(answer->parser, text, length));
    take(answer);
    return 0;
}

/* The number after "KEY": in a JSON object; a program with more functions uses a JSON library. */
static double number(const char *json, const char *key)
{
    const char *at = strstr(json, key);
    at = at ? strchr(at, ':') : NULL;
    return at ? strtod(at + 1, NULL) : 0;
}

static void run(struct call *call)
{
    if (strcmp(call->name, "multiply") == 0) {
        double product = number(call->arguments, "\"a\"") * number(call->arguments, "\"b\"");
        snprintf(call->result, sizeof call->result, "%g", product);
    } else if (strcmp(call->name, "year") == 0) {
        time_t now = time(NULL);
        strftime(call->result, sizeof call->result, "%Y", gmtime(&now));
    } else {
        snprintf(call->result, sizeof call->result, "error: no such function");
    }
    printf("[%s(%s) = %s]\n", call->name, call->arguments, call->result);
}

int main(int argc, char **argv)
{
    wl_model *model;
    wl_session *session;
    check(argc > 1 ? wl_model_open(argv[1], NULL, &model) : wl_model_builtin(NULL, &model));
    check(wl_session_new(model, NULL, &session));
    check(wl_chat_tools(session, schemas, WL_ZERO_TERMINATED));
    const char *message = argc > 2 ? argv[2] : "How much is 17 times 23?";
    static struct answer answer;
    for (int round = 0; round < MOST_ROUNDS; round++) {
        wl_generate_result result = {.size = sizeof result};
        answer.count = 0;
        check(wl_chat_parser(session, &answer.parser));
        if (round == 0)
            check(wl_chat_say(session, message, WL_ZERO_TERMINATED, NULL, show, &answer, &result));
        else
            check(wl_generate(session, NULL, show, &answer, &result));
        check(wl_answer_finish(answer.parser, result.finish != WL_FINISH_END));
        take(&answer);
        check(wl_answer_parser_free(answer.parser));
        printf("\n");
        if (answer.count == 0 || result.finish != WL_FINISH_END)
            break;
        const char *results[MOST_CALLS];
        for (size_t i = 0; i < answer.count; i++) {
            run(&answer.calls[i]);
            results[i] = answer.calls[i].result;
        }
        check(wl_chat_results(session, results, answer.count));
    }
    check(wl_session_free(session));
    check(wl_model_free(model));
    return 0;
}
