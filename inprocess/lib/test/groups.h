// Helpers for test programs that run each end of a round in a process group of its own.
#pragma once
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static inline char state_of(pid_t pid, pid_t tid) {
	char name[64], state = 0;
	snprintf(name, sizeof name, "/proc/%d/task/%d/stat", pid, tid);
	FILE *f = fopen(name, "re");
	if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 0;
	if (f) fclose(f);
	return state;
}
// busy tells whether any thread of two process groups, except the caller, is running, runnable or in uninterruptible sleep.
static inline bool busy(const pid_t group[2]) {
	bool found = false;
	DIR *d = opendir("/proc"), *tasks;
	for (struct dirent *p, *t; d && !found && (p = readdir(d));) {
		pid_t id = atoi(p->d_name), of = id > 0 ? getpgid(id) : -1;
		if (id <= 0 || (of != group[0] && of != group[1])) continue;
		char name[64];
		snprintf(name, sizeof name, "/proc/%d/task", id);
		if (!(tasks = opendir(name))) continue;
		while (!found && (t = readdir(tasks))) {
			if (atoi(t->d_name) <= 0 || atoi(t->d_name) == gettid()) continue;
			char state = state_of(id, atoi(t->d_name));
			found = state == 'R' || state == 'D';
		}
		closedir(tasks);
	}
	if (d) closedir(d);
	return found;
}
static inline void end_round(const pid_t group[2]) {
	for (int i = 0; i < 2; i++)
		if (group[i] > 0) kill(-group[i], SIGKILL);
	while (waitpid(-1, 0, 0) > 0) {} // including orphans that the groups have left
}
