import com.sun.net.httpserver.HttpServer;
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

/** What Java's own server, clients, selectors and streams do with seeded bytes. A line for each case: name, tab, result. */
public class Java {
    static byte[] bytes(long seed, int n) {
        byte[] b = new byte[n];
        new Random(seed).nextBytes(b);
        return b;
    }

    static void say(String name, Callable<String> f) {
        String r;
        try {
            r = f.call();
        } catch (Throwable e) {
            r = "FAIL " + e;
        }
        System.out.println(name + "\t" + r);
    }

    static void same(byte[] got, byte[] want, String what) {
        if (!Arrays.equals(got, want)) throw new IllegalStateException(what + ": " + got.length + " bytes, mismatch at " + Arrays.mismatch(got, want));
    }

    static String http() throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 100);
        ExecutorService pool = Executors.newFixedThreadPool(16);
        server.setExecutor(pool);
        server.createContext("/get/", x -> {
            byte[] b = bytes(1, Integer.parseInt(x.getRequestURI().getPath().substring(5)));
            x.sendResponseHeaders(200, b.length == 0 ? -1 : b.length);
            try (OutputStream o = x.getResponseBody()) { o.write(b); }
        });
        server.createContext("/echo", x -> { // chunked both ways
            x.sendResponseHeaders(200, 0);
            byte[] b = x.getRequestBody().readAllBytes();
            try (OutputStream o = x.getResponseBody()) { o.write(b); }
        });
        server.start();
        String at = "http://127.0.0.1:" + server.getAddress().getPort();
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        int[] sizes = {0, 1, 1000, 65536, 1 << 20, 16 << 20};
        int n = 0;
        for (int round = 0; round < 5; round++)
            for (int size : sizes) {
                byte[] got = client.send(HttpRequest.newBuilder(URI.create(at + "/get/" + size)).build(), HttpResponse.BodyHandlers.ofByteArray()).body();
                same(got, bytes(1, size), "get " + size);
                byte[] up = bytes(2, size);
                HttpRequest q = HttpRequest.newBuilder(URI.create(at + "/echo")).POST(HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(up))).build();
                same(client.send(q, HttpResponse.BodyHandlers.ofByteArray()).body(), up, "echo " + size);
                n += 2;
            }
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int i = 0; i < 400; i++) {
            int size = sizes[i % 5];
            all.add(client.sendAsync(HttpRequest.newBuilder(URI.create(at + "/get/" + size)).build(), HttpResponse.BodyHandlers.ofByteArray())
                .thenAccept(r -> same(r.body(), bytes(1, size), "async " + size)));
        }
        CompletableFuture.allOf(all.toArray(new CompletableFuture[0])).get(120, TimeUnit.SECONDS);
        server.stop(0);
        pool.shutdown();
        return (n + all.size()) + " bodies";
    }

    /** An echo server on one selector, clients on another, each with its own seed. */
    static String selectors() throws Exception {
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        Thread server = new Thread(() -> {
            try (Selector s = Selector.open()) {
                listener.configureBlocking(false);
                listener.register(s, SelectionKey.OP_ACCEPT);
                while (listener.isOpen()) {
                    s.select();
                    for (Iterator<SelectionKey> i = s.selectedKeys().iterator(); i.hasNext(); i.remove()) {
                        SelectionKey k = i.next();
                        if (!k.isValid()) continue;
                        if (k.isAcceptable()) {
                            SocketChannel c = listener.accept();
                            if (c == null) continue;
                            c.configureBlocking(false);
                            c.register(s, SelectionKey.OP_READ, ByteBuffer.allocateDirect(50000));
                            continue;
                        }
                        SocketChannel c = (SocketChannel) k.channel();
                        ByteBuffer b = (ByteBuffer) k.attachment();
                        if (k.isReadable() && c.read(b) < 0 && b.position() == 0) { c.close(); continue; }
                        b.flip();
                        c.write(b);
                        b.compact();
                        k.interestOps((b.hasRemaining() ? SelectionKey.OP_READ : 0) | (b.position() > 0 ? SelectionKey.OP_WRITE : 0));
                    }
                }
            } catch (ClosedSelectorException | IOException e) {
                if (listener.isOpen()) e.printStackTrace();
            }
        });
        server.setDaemon(true);
        server.start();
        int each = 3_000_000, n = 40;
        try (Selector s = Selector.open()) {
            byte[][] want = new byte[n][], got = new byte[n][];
            int[] sent = new int[n], had = new int[n];
            for (int i = 0; i < n; i++) {
                want[i] = bytes(100 + i, each);
                got[i] = new byte[each];
                SocketChannel c = SocketChannel.open();
                c.configureBlocking(false);
                c.connect(listener.getLocalAddress());
                c.register(s, SelectionKey.OP_CONNECT, i);
            }
            Random r = new Random(5);
            for (int left = n; left > 0;) {
                if (s.select(30_000) == 0) throw new IllegalStateException("nothing for 30 s, " + left + " left");
                for (Iterator<SelectionKey> it = s.selectedKeys().iterator(); it.hasNext(); it.remove()) {
                    SelectionKey k = it.next();
                    SocketChannel c = (SocketChannel) k.channel();
                    int i = (Integer) k.attachment();
                    if (k.isConnectable() && c.finishConnect()) k.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    if (k.isValid() && k.isWritable() && sent[i] < each) {
                        sent[i] += c.write(ByteBuffer.wrap(want[i], sent[i], Math.min(each - sent[i], 1 + r.nextInt(100_000))));
                        if (sent[i] == each) { c.shutdownOutput(); k.interestOps(SelectionKey.OP_READ); }
                    }
                    if (k.isReadable() && had[i] < each) {
                        int m = c.read(ByteBuffer.wrap(got[i], had[i], Math.min(each - had[i], 1 + r.nextInt(70_000))));
                        if (m < 0) throw new IllegalStateException("end after " + had[i]);
                        had[i] += m;
                    }
                    if (had[i] == each) { same(got[i], want[i], "channel " + i); k.cancel(); c.close(); left--; }
                }
            }
        }
        listener.close();
        return n + " channels";
    }

    static String streams() throws Exception {
        ServerSocket listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        ExecutorService pool = Executors.newCachedThreadPool();
        List<Future<String>> all = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            int seed = i;
            all.add(pool.submit(() -> {
                try (Socket c = new Socket("127.0.0.1", listener.getLocalPort())) {
                    c.setSoTimeout(600_000);
                    DataOutputStream o = new DataOutputStream(new BufferedOutputStream(c.getOutputStream()));
                    DataInputStream in = new DataInputStream(new BufferedInputStream(c.getInputStream()));
                    Random r = new Random(seed);
                    for (int k = 0; k < 300; k++) {
                        byte[] b = bytes(r.nextLong(), r.nextInt(20_000));
                        o.writeInt(b.length);
                        o.write(b);
                        o.flush();
                        byte[] back = new byte[in.readInt()];
                        in.readFully(back);
                        same(back, MessageDigest.getInstance("SHA-256").digest(b), "message " + k);
                    }
                    c.shutdownOutput();
                    return in.read() == -1 ? "ok" : "more after the end";
                }
            }));
            Socket s = listener.accept();
            pool.submit(() -> {
                DataInputStream in = new DataInputStream(s.getInputStream());
                DataOutputStream o = new DataOutputStream(s.getOutputStream());
                try (s) {
                    for (;;) {
                        byte[] b = new byte[in.readInt()];
                        in.readFully(b);
                        byte[] d = MessageDigest.getInstance("SHA-256").digest(b);
                        o.writeInt(d.length);
                        o.write(d);
                    }
                } catch (EOFException e) {
                    return null;
                }
            });
        }
        Map<String, Integer> count = new TreeMap<>();
        for (Future<String> f : all) count.merge(f.get(120, TimeUnit.SECONDS), 1, Integer::sum);
        try (Socket c = new Socket("127.0.0.1", listener.getLocalPort()); Socket s = listener.accept()) {
            c.setSoTimeout(200);
            try { c.getInputStream().read(); count.put("no timeout", 1); } catch (SocketTimeoutException e) { count.put("timeout", 1); }
            s.setSoLinger(true, 0);
            s.close();
            c.setSoTimeout(600_000);
            try { count.put("read " + c.getInputStream().read(), 1); } catch (SocketException e) { count.put(e.getMessage(), 1); }
        }
        pool.shutdownNow();
        listener.close();
        return count.toString();
    }

    /** Files go out by transferTo, which is sendfile. */
    static String files() throws Exception {
        File f = File.createTempFile("java", null);
        byte[] want = bytes(9, 20_000_000);
        try (FileOutputStream o = new FileOutputStream(f)) { o.write(want); }
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        for (int i = 0; i < 3; i++) {
            SocketChannel c = SocketChannel.open(listener.getLocalAddress()), s = listener.accept();
            Thread t = new Thread(() -> {
                try (FileChannel in = FileChannel.open(f.toPath()); s) {
                    for (long at = 0; at < want.length;) at += in.transferTo(at, want.length - at, s);
                } catch (IOException e) {
                    e.printStackTrace();
                }
            });
            t.start();
            byte[] got = c.socket().getInputStream().readAllBytes();
            t.join();
            same(got, want, "file");
            c.close();
        }
        return "3 files";
    }

    public static void main(String[] args) {
        say("http", Java::http);
        say("selectors", Java::selectors);
        say("streams", Java::streams);
        say("files", Java::files);
        System.exit(0);
    }
}
