/*
 * Checks answers split into content, thoughts and calls. The arguments are models whose templates have Hermes' format, Qwen3-Coder's format,
 * and no way to tell the model of tools.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
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
#define REFUSED(status, text, call)                                                                 \
    do {                                                                                            \
        CHECK((call) == (status));                                                                  \
        CHECK(strstr(wl_last_error(), text) != NULL);                                               \
    } while (0)

#define TOOLS                                                                                       \
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"The weather.\", \"parameters\":"      \
    " {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}]"

#define HERMES "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Z\xc3\xbcrich\", \"days\": 2}}\n</tool_call>"
#define CODER                                                                                       \
    "<tool_call>\n<function=weather>\n<parameter=city>\nZ\xc3\xbcrich\n</parameter>\n<parameter=days>\n2\n</parameter>\n" \
    "</function>\n</tool_call>"

/* What the parts of an answer say. */
struct said {
    char content[512], reasoning[512], calls[8][512], ids[8][64];
    int begun, ended, parts;
};

static void append(char *to, const char *text, size_t length)
{
    CHECK(text != NULL && text[length] == 0 && strlen(to) + length < 512);
    strncat(to, text, length);
}

static void take(wl_answer_parser *parser, struct said *said)
{
    wl_answer_part part = {.size = sizeof part};
    for (;;) {
        OK(wl_answer_next(parser, &part));
        CHECK(part.size == sizeof part);
        if (part.kind == WL_PART_NONE)
            return;
        said->parts++;
        if (part.kind == WL_PART_CONTENT)
            append(said->content, part.text, part.length);
        else if (part.kind == WL_PART_REASONING)
            append(said->reasoning, part.text, part.length);
        else if (part.kind == WL_PART_CALL_BEGINS || part.kind == WL_PART_CALL_ARGUMENTS)
            append(said->calls[part.call], part.text, part.length);
        if (part.id)
            append(said->ids[part.call], part.id, strlen(part.id));
        said->begun += part.kind == WL_PART_CALL_BEGINS;
        said->ended += part.kind == WL_PART_CALL_ENDS;
        CHECK(part.kind != WL_PART_CALL_BEGINS || part.call + 1 == (size_t)said->begun);
        CHECK(part.kind != WL_PART_CALL_ENDS || part.call + 1 == (size_t)said->ended);
    }
}

/* The parts of an answer that arrives in pieces of `step` bytes. */
static struct said streamed(const wl_model *model, const char *prompt, const char *text, size_t step, uint32_t is_cut)
{
    wl_answer_parser *parser = NULL;
    struct said said;
    memset(&said, 0, sizeof said);
    OK(wl_answer_parser_new(model, TOOLS, WL_ZERO_TERMINATED, prompt, WL_ZERO_TERMINATED, &parser));
    for (size_t at = 0, length = strlen(text); at < length; at += step) {
        OK(wl_answer_push(parser, text + at, length - at < step ? length - at : step));
        take(parser, &said);
    }
    OK(wl_answer_finish(parser, is_cut));
    take(parser, &said);
    OK(wl_answer_parser_free(parser));
    return said;
}

static void formats(const wl_model *model, const char *call)
{
    char text[1024];
    for (size_t step = 1; step < 80; step += 7) {
        snprintf(text, sizeof text, "<think>\nWhich city? \xe2\x80\x94\n</think>\n\nLet me look.\n%s\n%s", call, call);
        struct said said = streamed(model, "", text, step, 0);
        CHECK(strcmp(said.reasoning, "Which city? \xe2\x80\x94") == 0 && strncmp(said.content, "Let me look.", 12) == 0);
        CHECK(strspn(said.content + 12, "\n") == strlen(said.content + 12));
        CHECK(said.begun == 2 && said.ended == 2);
        for (int i = 0; i < 2; i++)
            CHECK(strcmp(said.calls[i], "weather{\"city\": \"Z\xc3\xbcrich\", \"days\": 2}") == 0 ||
                  strcmp(said.calls[i], "weather{\"city\":\"Z\xc3\xbcrich\",\"days\":2}") == 0);

        /* The prompt opened the thought. */
        said = streamed(model, "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nYes.", step, 0);
        CHECK(strcmp(said.reasoning, "Hm.") == 0 && strcmp(said.content, "Yes.") == 0 && said.begun == 0);

        /* Text that only begins like a call stays text, to the letter. */
        const char *plain = "Write <tool_call> and </think>? Or <tool_call>\n<b>{x}</b> \xf0\x9f\x94\xa5.";
        said = streamed(model, "<think>\n\n</think>\n\n", plain, step, 0);
        CHECK(strcmp(said.content, plain) == 0 && said.begun == 0 && !*said.reasoning);
    }

    /* At every byte a cut call is a call without an end, and text before it is kept. */
    snprintf(text, sizeof text, "Look: %s", call);
    size_t length = strlen(text), ended = 0;
    for (size_t cut = 0; cut <= length; cut++) {
        char part[1024] = {0};
        memcpy(part, text, cut);
        struct said said = streamed(model, "", part, 3, 1);
        CHECK(strncmp(said.content, "Look:", cut < 5 ? cut : 5) == 0);
        CHECK(said.begun <= 1 && said.ended <= said.begun);
        CHECK(said.begun == 1 || strncmp(said.content, part, strlen(part) > 6 ? 6 : 0) == 0);
        ended += said.ended;
    }
    CHECK(ended > 0 && ended < length / 4);
}

static void one_shot(const wl_model *model)
{
    wl_session *session = NULL;
    wl_answer_parser *parser = NULL;
    const char *json;
    size_t length;
    OK(wl_session_new(model, NULL, &session));
    OK(wl_chat_tools(session, TOOLS, WL_ZERO_TERMINATED));
    OK(wl_chat_parse(session, "<think>Hm.</think>Yes. " HERMES, WL_ZERO_TERMINATED, 0, &parser));
    OK(wl_answer_json(parser, &json, &length));
    CHECK(json[length] == 0 && strlen(json) == length);
    CHECK(strstr(json, "{\"role\":\"assistant\",\"content\":\"Yes.") == json);
    CHECK(strstr(json, "\"reasoning_content\":\"Hm.\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\"") != NULL);
    CHECK(strstr(json, "Z\xc3\xbcrich") != NULL && strstr(json, "\"id\"") == NULL);
    OK(wl_answer_parser_free(parser));
    OK(wl_chat_parse(session, HERMES, strlen(HERMES) - 20, 1, &parser));
    struct said said;
    memset(&said, 0, sizeof said);
    take(parser, &said);
    CHECK(said.begun == 1 && said.ended == 0);
    OK(wl_answer_parser_free(parser));

    /* Without tools all is content. */
    OK(wl_chat_tools(session, "[]", 2));
    OK(wl_chat_parse(session, HERMES, WL_ZERO_TERMINATED, 0, &parser));
    memset(&said, 0, sizeof said);
    take(parser, &said);
    CHECK(said.begun == 0 && strcmp(said.content, HERMES) == 0);
    OK(wl_answer_parser_free(parser));
    OK(wl_session_free(session));
}

static void refusals(const wl_model *model)
{
    wl_session *session = NULL;
    wl_answer_parser *parser = NULL, *other = NULL;
    wl_answer_part part = {.size = sizeof part};
    const char *json;
    size_t length;
    OK(wl_session_new(model, NULL, &session));
    REFUSED(WL_ERROR_HANDLE, "model is NULL", wl_answer_parser_new(NULL, NULL, 0, NULL, 0, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "place for the parser", wl_answer_parser_new(model, NULL, 0, NULL, 0, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "the tools", wl_answer_parser_new(model, "{", 1, NULL, 0, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "tools is NULL", wl_answer_parser_new(model, NULL, 3, NULL, 0, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "prompt is not UTF-8", wl_answer_parser_new(model, NULL, 0, "\xff", 1, &parser));
    REFUSED(WL_ERROR_HANDLE, "session is NULL", wl_chat_parser(NULL, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "place for the parser", wl_chat_parser(session, NULL));
    REFUSED(WL_ERROR_ARGUMENT, "text is NULL", wl_chat_parse(session, NULL, 3, 0, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "text is not UTF-8", wl_chat_parse(session, "a\xc3", 2, 0, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "is_cut: found 2", wl_chat_parse(session, "a", 1, 2, &parser));
    REFUSED(WL_ERROR_ARGUMENT, "place for the parser", wl_chat_parse(session, "a", 1, 0, NULL));
    REFUSED(WL_ERROR_HANDLE, "answer parser is NULL", wl_answer_push(NULL, "a", 1));
    REFUSED(WL_ERROR_HANDLE, "not a handle", wl_answer_push((wl_answer_parser *)&part, "a", 1));
    REFUSED(WL_ERROR_HANDLE, "another kind", wl_answer_push((wl_answer_parser *)session, "a", 1));
    OK(wl_answer_parser_free(NULL));

    OK(wl_answer_parser_new(model, NULL, 0, NULL, 0, &parser));
    CHECK(parser != NULL && other == NULL);
    REFUSED(WL_ERROR_ARGUMENT, "text is NULL", wl_answer_push(parser, NULL, 1));
    REFUSED(WL_ERROR_ARGUMENT, "more than any memory", wl_answer_push(parser, "a", WL_ZERO_TERMINATED));
    OK(wl_answer_push(parser, NULL, 0));
    OK(wl_answer_push(parser, "na\xc3", 3));
    REFUSED(WL_ERROR_ARGUMENT, "byte 0 is part", wl_answer_push(parser, "x", 1));
    REFUSED(WL_ERROR_ARGUMENT, "byte 1 is part", wl_answer_push(parser, "\xaf\xff", 2));
    OK(wl_answer_push(parser, "\xafve\xe2\x80", 5));
    REFUSED(WL_ERROR_ARGUMENT, "is_cut: found 7", wl_answer_finish(parser, 7));
    REFUSED(WL_ERROR_ARGUMENT, "place for the part", wl_answer_next(parser, NULL));
    part.size = 3;
    REFUSED(WL_ERROR_ARGUMENT, "its size is 3", wl_answer_next(parser, &part));
    part.size = sizeof part;
    REFUSED(WL_ERROR_ARGUMENT, "place for the text", wl_answer_json(parser, NULL, &length));
    REFUSED(WL_ERROR_ARGUMENT, "place for the length", wl_answer_json(parser, &json, NULL));
    OK(wl_answer_finish(parser, 0));
    REFUSED(WL_ERROR_ARGUMENT, "is finished", wl_answer_push(parser, "a", 1));
    REFUSED(WL_ERROR_ARGUMENT, "is finished", wl_answer_finish(parser, 0));
    OK(wl_answer_json(parser, &json, &length));
    CHECK(strstr(json, "na\xc3\xafve\xef\xbf\xbd") != NULL);
    OK(wl_answer_parser_free(parser));
    REFUSED(WL_ERROR_HANDLE, "was freed", wl_answer_next(parser, &part));
    REFUSED(WL_ERROR_HANDLE, "was freed", wl_answer_parser_free(parser));

    const char *results[] = {"sunny", NULL};
    REFUSED(WL_ERROR_ARGUMENT, "no answer", wl_chat_results(session, results, 1));
    OK(wl_chat_set_messages(session, (wl_message[]){{"user", "Hi."}, {"assistant", "Hello!"}}, 2));
    REFUSED(WL_ERROR_ARGUMENT, "found 1, expected 0", wl_chat_results(session, results, 1));
    REFUSED(WL_ERROR_ARGUMENT, "results[1] is NULL", wl_chat_results(session, results, 2));
    REFUSED(WL_ERROR_ARGUMENT, "results is NULL", wl_chat_results(session, NULL, 2));
    OK(wl_session_free(session));
}

struct answer {
    wl_answer_parser *parser;
    struct said said;
};

static int show(const char *text, size_t length, void *user)
{
    struct answer *answer = user;
    OK(wl_answer_push(answer->parser, text, length));
    take(answer->parser, &answer->said);
    return 0;
}

/* A model that is made to call a function gets its result; its history has the call as its template writes calls. */
static void loop(const wl_model *model, int lists_tools)
{
    wl_session *session = NULL;
    wl_generate_result result = {.size = sizeof result};
    wl_generate_params limits;
    struct answer answer;
    static char json[8192];
    size_t length;
    OK(wl_generate_params_init(&limits, sizeof limits));
    limits.max_tokens = 400;
    OK(wl_session_new(model, NULL, &session));
    OK(wl_chat_system(session, "Be brief.", WL_ZERO_TERMINATED));
    OK(wl_chat_tools(session, TOOLS, WL_ZERO_TERMINATED));
    OK(wl_session_constrain(session, WL_CONSTRAINT_LARK, "start: \"Look.\\n<tool_call>\\n{\\\"name\\\": \\\"weather\\\", \\\"arguments\\\": {\\\"city\\\": \\\"Bern\\\"}}\\n</tool_call>\"", WL_ZERO_TERMINATED));
    memset(&answer, 0, sizeof answer);
    OK(wl_chat_parser(session, &answer.parser));
    OK(wl_chat_say(session, "Hello!", WL_ZERO_TERMINATED, &limits, show, &answer, &result));
    CHECK(result.finish == WL_FINISH_END);
    OK(wl_answer_finish(answer.parser, 0));
    take(answer.parser, &answer.said);
    OK(wl_answer_parser_free(answer.parser));
    CHECK(strncmp(answer.said.content, "Look.", 5) == 0 && answer.said.ended == 1 && answer.said.parts > 4);
    CHECK(strstr(answer.said.calls[0], "weather{") == answer.said.calls[0] && strstr(answer.said.calls[0], "Bern"));
    OK(wl_session_constrain(session, WL_CONSTRAINT_NONE, NULL, 0));
    const char *results[] = {"Sunny, 25 \xc2\xb0""C.", "more"};
    REFUSED(WL_ERROR_ARGUMENT, "found 2, expected 1", wl_chat_results(session, results, 2));
    REFUSED(WL_ERROR_ARGUMENT, "found 0, expected 1", wl_chat_results(session, NULL, 0));
    OK(wl_chat_results(session, results, 1));
    OK(wl_chat_messages_json(session, json, sizeof json, &length));
    CHECK(strstr(json, "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hello!\"}") == json);
    CHECK(!lists_tools == !strstr(json, "\"tool_calls\":[{\"id\":\"call_"));
    CHECK(lists_tools || strstr(json, "<tool_call>"));
    const char *sent = lists_tools ? "\"role\":\"tool\",\"content\":\"Sunny, 25 \xc2\xb0""C.\",\"tool_call_id\":\"call_"
                                   : "\"role\":\"user\",\"content\":\"<tool_response>\\nSunny, 25 \xc2\xb0""C.\\n</tool_response>";
    CHECK(strstr(json, sent) != NULL);
    limits.max_tokens = 8;
    OK(wl_generate(session, &limits, NULL, NULL, &result));
    CHECK(result.tokens > 0);
    OK(wl_session_free(session));
}

static void rendering(const wl_model *model, int lists_tools)
{
    static char text[8192];
    size_t length, room;
    wl_render_params params;
    OK(wl_render_params_init(&params, sizeof params));
    CHECK(params.add_generation_prompt == 1 && !params.messages && !params.tools && !params.variables);
    REFUSED(WL_ERROR_ARGUMENT, "messages is NULL", wl_chat_render(model, NULL, text, sizeof text, &length));
    REFUSED(WL_ERROR_ARGUMENT, "messages is NULL", wl_chat_render(model, &params, text, sizeof text, &length));
    params.messages = "[{\"role\": \"user\", \"content\": \"Hi.\"}]";
    OK(wl_chat_render(model, &params, NULL, 0, &room));
    OK(wl_chat_render(model, &params, text, room + 1, &length));
    CHECK(length == room && strlen(text) == length && strstr(text, "Hi.") && !strstr(text, "weather"));
    REFUSED(WL_ERROR_ROOM, "needs room", wl_chat_render(model, &params, text, room, &length));
    params.add_generation_prompt = 0;
    OK(wl_chat_render(model, &params, text, sizeof text, &length));
    CHECK(length < room);
    params.add_generation_prompt = 1;
    params.tools = TOOLS;
    OK(wl_chat_render(model, &params, text, sizeof text, &length));
    CHECK(strstr(text, "weather") && !lists_tools == !!strstr(text, "You can call these functions"));
    params.variables = "{\"enable_thinking\": true}";
    OK(wl_chat_render(model, &params, text, sizeof text, &length));
    CHECK(!lists_tools == !strstr(text, "<think>\n"));
    params.variables = "{\"enable_thinking\": 7}";
    REFUSED(WL_ERROR_ARGUMENT, "enable_thinking", wl_chat_render(model, &params, text, sizeof text, &length));
    params.variables = "[]";
    REFUSED(WL_ERROR_ARGUMENT, "the variables", wl_chat_render(model, &params, text, sizeof text, &length));
    params.variables = NULL;
    params.tools = "7";
    REFUSED(WL_ERROR_ARGUMENT, "the tools", wl_chat_render(model, &params, text, sizeof text, &length));
    params.tools = NULL;
    params.messages = "{";
    REFUSED(WL_ERROR_ARGUMENT, "the messages", wl_chat_render(model, &params, text, sizeof text, &length));
    REFUSED(WL_ERROR_HANDLE, "model is NULL", wl_chat_render(NULL, &params, text, sizeof text, &length));
    REFUSED(WL_ERROR_ARGUMENT, "NULL", wl_render_params_init(NULL, sizeof params));
}

/* A template that cannot tell the model of tools refuses them. */
static void mute(const wl_model *model)
{
    wl_session *session = NULL;
    size_t length;
    OK(wl_session_new(model, NULL, &session));
    REFUSED(WL_ERROR_TEXT, "lists no tools", wl_chat_tools(session, TOOLS, WL_ZERO_TERMINATED));
    OK(wl_chat_tools(session, "[]", 2));
    OK(wl_session_free(session));
    wl_render_params params;
    OK(wl_render_params_init(&params, sizeof params));
    params.messages = "[{\"role\": \"user\", \"content\": \"Hi.\"}]";
    OK(wl_chat_render(model, &params, NULL, 0, &length));
    params.tools = TOOLS;
    REFUSED(WL_ERROR_TEXT, "lists no tools", wl_chat_render(model, &params, NULL, 0, &length));
}

static void info(const wl_model *model)
{
    wl_model_info info = {.size = sizeof info};
    OK(wl_model_get_info(model, &info));
    CHECK(info.end_count > 0 && info.end_count < 9);
    int has_eos = info.eos < 0;
    for (size_t i = 0; i < info.end_count; i++) {
        CHECK(info.ends[i] < info.vocab);
        has_eos |= info.ends[i] == info.eos;
    }
    CHECK(has_eos);
    /* The fields of an older program's struct are filled, and no others. */
    uint64_t context = info.trained_context = 0x5555;
    info.size = (uint32_t)((char *)&info.trained_context - (char *)&info);
    OK(wl_model_get_info(model, &info));
    CHECK(info.trained_context == context && info.has_chat_template == 1);
}

int main(int argc, char **argv)
{
    wl_model *models[4] = {NULL};
    if (argc != 4)
        return 2;
    for (int i = 0; i < 3; i++)
        OK(wl_model_open(argv[i + 1], NULL, &models[i]));
    OK(wl_model_builtin(NULL, &models[3]));
    formats(models[0], HERMES);
    formats(models[1], CODER);
    one_shot(models[0]);
    refusals(models[0]);
    loop(models[0], 1);
    loop(models[3], 0);
    rendering(models[0], 1);
    rendering(models[3], 0);
    mute(models[2]);
    for (int i = 0; i < 4; i++) {
        info(models[i]);
        OK(wl_model_free(models[i]));
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
