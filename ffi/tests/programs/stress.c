#define _DEFAULT_SOURCE /* usleep */
/*
 * Eight threads, one model, sixteen sessions: each thread takes a free session, does the next step of the session's
 * random script (read, write, fork, save, rewind, reset), and returns it, while another thread cancels running
 * calls. Then one thread repeats the scripts alone: every result must be the same.
 *
 *   stress SECONDS SEED FOLDER [MODEL [cpu|cuda]]
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <waterline.h>

enum { THREADS = 8, SESSIONS = 16 };

/* A session with its script, which depends only on the seed. */
struct lane {
    pthread_mutex_t turn;
    pthread_mutex_t others; /* free only while the thread that holds `turn` reads, so that no other call of it finds the session busy */
    wl_session *session;
    uint64_t random; /* state of the script's random numbers */
    uint64_t hash;   /* hash of all results */
    long steps;
    uint64_t marked;
    int number;
};

static wl_model *model;
static wl_model_info info;
static const char *folder;
static struct lane lanes[SESSIONS];
static volatile int stop;
static long done, cancelled, busy;

static void check(wl_status status, const char *what)
{
    if (status == WL_OK)
        return;
    fprintf(stderr, "stress: %s: %s: %s\n", what, wl_status_name(status), wl_last_error());
    exit(1);
}

static uint32_t next(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33);
}

static void add(struct lane *lane, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++)
        lane->hash = (lane->hash ^ at[i]) * 0x100000001b3u;
}

static void open_lane(struct lane *lane, int number, uint64_t seed)
{
    wl_sampler_params sampler;
    check(wl_sampler_params_init(&sampler, sizeof sampler), "sampler");
    sampler.seed = seed + (uint64_t)number;
    wl_session_params params;
    check(wl_session_params_init(&params, sizeof params), "params");
    /* Some sessions compute on their caller's thread, others share two threads. */
    params.threads = number % 4 == 0 ? 2 : 1;
    params.chunk = (size_t[]){64, 7, 16}[number % 3];
    params.marks = 1;
    params.sampler = &sampler;
    check(wl_session_new(model, &params, &lane->session), "session");
    pthread_mutex_init(&lane->turn, NULL);
    pthread_mutex_init(&lane->others, NULL);
    lane->number = number;
    lane->random = seed * 1000 + (uint64_t)number;
    lane->hash = 0xcbf29ce484222325u;
    lane->steps = 0;
    lane->marked = UINT64_MAX;
}

/* Reads all tokens, although other threads cancel the call or make the session busy. */
static void feed(struct lane *lane, const uint32_t *tokens, size_t count)
{
    while (count > 0) {
        size_t fed = 0;
        pthread_mutex_unlock(&lane->others);
        wl_status status = wl_feed(lane->session, tokens, count, &fed);
        pthread_mutex_lock(&lane->others);
        if (status == WL_CANCELLED)
            __atomic_add_fetch(&cancelled, 1, __ATOMIC_RELAXED);
        else if (status != WL_ERROR_BUSY)
            check(status, "feed");
        tokens += fed;
        count -= fed;
    }
}

static void logits(struct lane *lane)
{
    const float *logits;
    size_t count;
    check(wl_logits(lane->session, &logits, &count), "logits");
    add(lane, logits, count * sizeof *logits);
}

/* Continues with a fork. */
static void go_on_with_a_fork(struct lane *lane)
{
    wl_session *fork;
    check(wl_session_fork(lane->session, &fork), "fork");
    check(wl_session_free(lane->session), "free");
    __atomic_store_n(&lane->session, fork, __ATOMIC_RELAXED);
    lane->marked = UINT64_MAX;
}

/* Saves the state, reads other tokens, and restores the state, in memory or with a file. */
static void save_and_restore(struct lane *lane, int file)
{
    char path[1024];
    size_t size = 0;
    void *state = NULL;
    snprintf(path, sizeof path, "%s/lane-%d.state", folder, lane->number);
    if (file) {
        check(wl_state_save(lane->session, path), "save");
    } else {
        check(wl_state_size(lane->session, &size), "size");
        state = malloc(size);
        check(wl_state_write(lane->session, state, size, &size), "write");
    }
    uint32_t tokens[9];
    for (int i = 0; i < 9; i++)
        tokens[i] = next(&lane->random) % info.vocab;
    feed(lane, tokens, 9);
    check(file ? wl_state_load(lane->session, path) : wl_state_read(lane->session, state, size), "restore");
    free(state);
    lane->marked = UINT64_MAX;
}

/* Does the next step of the script. */
static void step(struct lane *lane)
{
    uint32_t tokens[160];
    uint32_t what = next(&lane->random) % 16;
    pthread_mutex_lock(&lane->others);
    wl_session_info now = {.size = sizeof now};
    check(wl_session_get_info(lane->session, &now), "info");
    if (now.position == 0 || what < 5) {
        size_t count = 1 + next(&lane->random) % 150;
        for (size_t i = 0; i < count; i++)
            tokens[i] = next(&lane->random) % info.vocab;
        feed(lane, tokens, count);
    } else if (what < 10) {
        for (int i = 0; i < 12; i++) {
            check(wl_sample(lane->session, &tokens[0]), "sample");
            add(lane, &tokens[0], sizeof tokens[0]);
            feed(lane, tokens, 1);
        }
    } else if (what < 12) {
        go_on_with_a_fork(lane);
    } else if (what < 14) {
        save_and_restore(lane, what == 13);
    } else if (what == 14 && lane->marked <= now.position) {
        check(wl_session_rewind(lane->session, lane->marked), "rewind");
    } else if (what == 14) {
        check(wl_session_mark(lane->session), "mark");
        lane->marked = now.position;
    } else if (next(&lane->random) % 4 == 0) {
        check(wl_session_reset(lane->session), "reset");
        lane->marked = UINT64_MAX;
    } else {
        char text[64];
        size_t length, count;
        uint32_t token = next(&lane->random) % info.vocab;
        const char *bytes;
        check(wl_token_bytes(model, token, &bytes, &length), "bytes");
        add(lane, bytes, length);
        check(wl_detokenize(model, &token, 1, text, sizeof text, &length), "detokenize");
        check(wl_tokenize(model, "a dog and a cat", WL_ZERO_TERMINATED, 0, tokens, 160, &count), "tokenize");
        add(lane, tokens, count * sizeof *tokens);
    }
    logits(lane);
    pthread_mutex_unlock(&lane->others);
    lane->steps++;
}

static void *work(void *seed)
{
    uint64_t random = (uintptr_t)seed;
    while (!stop) {
        struct lane *lane = &lanes[next(&random) % SESSIONS];
        if (pthread_mutex_trylock(&lane->turn) != 0) {
            /* Another thread holds the session: the call is busy, unless that thread has not begun or has finished reading. */
            if (pthread_mutex_trylock(&lane->others) == 0) {
                wl_session_info now = {.size = sizeof now};
                wl_status status = wl_session_get_info(lane->session, &now);
                if (status == WL_ERROR_BUSY)
                    __atomic_add_fetch(&busy, 1, __ATOMIC_RELAXED);
                else
                    check(status, "info of a session in use");
                pthread_mutex_unlock(&lane->others);
            }
            usleep(100);
            continue;
        }
        step(lane);
        __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&lane->turn);
    }
    return NULL;
}

static void *cancel(void *seed)
{
    uint64_t random = (uintptr_t)seed;
    while (!stop) {
        wl_session *session = __atomic_load_n(&lanes[next(&random) % SESSIONS].session, __ATOMIC_RELAXED);
        wl_status status = wl_session_cancel(session);
        if (status != WL_ERROR_HANDLE)
            check(status, "cancel");
        usleep(2000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: stress SECONDS SEED FOLDER [MODEL [cpu|cuda]]\n");
        return 2;
    }
    time_t seconds = atoi(argv[1]);
    uint64_t seed = strtoull(argv[2], NULL, 10);
    folder = argv[3];
    wl_model_params opens;
    check(wl_model_params_init(&opens, sizeof opens), "model params");
    if (argc == 6)
        opens.device = strcmp(argv[5], "cuda") == 0 ? WL_DEVICE_CUDA : WL_DEVICE_CPU;
    if (argc > 4)
        check(wl_model_open(argv[4], &opens, &model), "model");
    else
        check(wl_model_builtin(NULL, &model), "model");
    info.size = sizeof info;
    check(wl_model_get_info(model, &info), "info");

    for (int i = 0; i < SESSIONS; i++)
        open_lane(&lanes[i], i, seed);
    pthread_t threads[THREADS], canceller;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(seed + i + 1));
    pthread_create(&canceller, NULL, cancel, (void *)(uintptr_t)seed);
    /* A slow or busy machine runs until some steps are done. */
    for (time_t begin = time(NULL); time(NULL) < begin + seconds || __atomic_load_n(&done, __ATOMIC_RELAXED) < 4 * SESSIONS;)
        usleep(50000);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(canceller, NULL);

    long steps = 0, differ = 0;
    for (int i = 0; i < SESSIONS; i++) {
        struct lane alone;
        open_lane(&alone, i, seed);
        while (alone.steps < lanes[i].steps)
            step(&alone);
        if (alone.hash != lanes[i].hash) {
            fprintf(stderr, "stress: session %d differs after %ld steps\n", i, alone.steps);
            differ++;
        }
        steps += alone.steps;
        check(wl_session_free(alone.session), "free");
        check(wl_session_free(lanes[i].session), "free");
    }
    check(wl_model_free(model), "free");
    printf("%ld steps, %ld cancelled, %ld busy, %ld of %d sessions differ\n", steps, cancelled, busy, differ, SESSIONS);
    return differ != 0 || cancelled == 0 || busy == 0;
}
