// pair() makes a connection over loopback and returns both of its ends.
#pragma once
#include <arpa/inet.h>
#include <err.h>
#include <sys/socket.h>
#include <unistd.h>

static void pair(int *client, int *server) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || bind(l, (struct sockaddr *)&a, n) || listen(l, 1) || getsockname(l, (struct sockaddr *)&a, &n)) err(1, "listen");
	*client = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(*client, (struct sockaddr *)&a, n)) err(1, "connect");
	if ((*server = accept(l, 0, 0)) < 0) err(1, "accept");
	close(l);
}
