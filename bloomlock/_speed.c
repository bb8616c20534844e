/* bloomlock._speed: the inner loops of bloomlock in C, bit for bit what the Python code does.

   Places hashes items to bit offsets (hashing.py). `operations` writes them as commands, `missing`
   reads the replies (strategies/bits.py). Over images of shards it tests and sets the bits in
   memory (filters/memory_bits.py).

   Threads. Whatever writes bits holds the interpreter's lock from its first bit to its last, so to
   test and set the bits of an item is one step for all threads, and there is no other lock that a
   fork could copy. Batches of reads give it up while they read.

   Bounds. Places keeps a view of each image, whose length it has checked against the shape. Every
   offset is below the shape's number of bits, so no access needs a check of its own.

   Limited API of Python 3.11. No format has a '#': compiled for that API by Python 3.13.0, it is
   refused by 3.11 and 3.12. */

#include <Python.h>

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#ifndef BLOOMLOCK_VERSION
#error "BLOOMLOCK_VERSION is not defined"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are read as they lie; this machine takes the Python code"
#endif

#define MAX_HASHES 64
#define MAX_SHARDS 4096
#define MAX_BITS (((uint64_t)1 << 32) - FIRST_BIT)
#define FIRST_BYTE 24
#define FIRST_BIT (8 * FIRST_BYTE)
#define ROWS_AHEAD 16
#define MERGE_BYTES ((Py_ssize_t)1 << 20)
#define DIGITS 10

/* A batch of reads runs beside a writer; a byte is read as it was or as it is. */
#define LOAD(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define PREFETCH(p) __builtin_prefetch(p)

/* Murmur3 x64 128 (A. Appleby, public domain). */

static inline uint64_t rotate(uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }

static inline uint64_t word(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static void murmur(const char *text, Py_ssize_t size, uint32_t seed, uint64_t out[2])
{
    const uint64_t c1 = 0x87c37b91114253d5ULL, c2 = 0x4cf5ad432745937fULL;
    const uint8_t *data = (const uint8_t *)text;
    uint64_t h1 = seed, h2 = seed, k1 = 0, k2 = 0;
    Py_ssize_t left = size;
    for (; left >= 16; left -= 16, data += 16) {
        h1 ^= rotate(word(data) * c1, 31) * c2;
        h1 = (rotate(h1, 27) + h2) * 5 + 0x52dce729;
        h2 ^= rotate(word(data + 8) * c2, 33) * c1;
        h2 = (rotate(h2, 31) + h1) * 5 + 0x38495ab5;
    }
    for (Py_ssize_t i = left - 1; i >= 8; i--)
        k2 = k2 << 8 | data[i];
    for (Py_ssize_t i = (left < 8 ? left : 8) - 1; i >= 0; i--)
        k1 = k1 << 8 | data[i];
    h2 ^= rotate(k2 * c2, 33) * c1;
    h1 ^= rotate(k1 * c1, 31) * c2;
    h1 ^= (uint64_t)size;
    h2 ^= (uint64_t)size;
    h1 += h2;
    h2 += h1;
    h1 = mix(h1);
    h2 = mix(h2);
    h1 += h2;
    out[0] = h1;
    out[1] = h2 + h1;
}

/* Where the bits of an item lie. */

typedef struct {
    uint64_t bits;    /* of one shard, m */
    uint32_t hashes;  /* k */
    uint32_t shards;  /* S */
    uint32_t seeded;  /* number of seeds: k, or 0 for default hashing */
    uint32_t words;   /* of a digest: two, or with seeds k */
    uint32_t seeds[MAX_HASHES];
} Shape;

typedef struct {
    PyObject_HEAD
    Shape shape;
    uint32_t held;     /* images that views were taken of: none, or one of each shard */
    Py_buffer *images;
    unsigned long long added; /* new items that `add` has added */
    unsigned long long limit; /* of added */
} Places;

static void digest(const Shape *shape, const char *data, Py_ssize_t size, uint64_t *out)
{
    uint64_t both[2];
    if (!shape->seeded) {
        murmur(data, size, 0, out);
        return;
    }
    for (uint32_t i = 0; i < shape->seeded; i++) {
        murmur(data, size, shape->seeds[i], both);
        out[i] = both[0];
    }
}

static inline uint32_t shard_of(const Shape *shape, uint64_t h1)
{
    /* (h1 * S) >> 64 by 32-bit halves */
    uint64_t low = (h1 & 0xffffffff) * shape->shards >> 32;
    return (uint32_t)(((h1 >> 32) * shape->shards + low) >> 32);
}

/* Place the bits of a digest, the bitmap's first being 0. */
static inline void place(const Shape *shape, const uint64_t *words, uint32_t *out)
{
    const uint64_t m = shape->bits;
    const uint32_t k = shape->hashes;
    if (shape->seeded) {
        for (uint32_t i = 0; i < k; i++)
            out[i] = (uint32_t)((words[i] % m + i) % m);
        return;
    }
    uint64_t x = words[0] % m, y = words[1] % m, z = words[1] / m % m;
    for (uint32_t i = 1; i <= k; i++) {
        out[i - 1] = (uint32_t)x;
        x += y;
        x -= x >= m ? m : 0;
        y += z + i;
        y -= y >= m ? m : 0;
        if (y >= m) /* hardly ever: y and z are below m */
            y %= m;
    }
}

/* The bytes of an item, which live as long as it does; 0 where Python has to look at it. */
static inline int bytes_of(PyObject *item, const char **data, Py_ssize_t *size)
{
    if (PyUnicode_Check(item)) {
        *data = PyUnicode_AsUTF8AndSize(item, size);
        if (*data == NULL) {
            PyErr_Clear(); /* a lone surrogate */
            return 0;
        }
        return 1;
    }
    if (!PyBytes_Check(item))
        return 0;
    *data = PyBytes_AsString(item);
    *size = PyBytes_Size(item);
    return 1;
}

/* Write the digests of a list; 1: done, 0: Python has to look at an item, -1: raised. */
static int digest_all(const Shape *shape, PyObject *items, Py_ssize_t count, uint64_t *out)
{
    for (Py_ssize_t i = 0; i < count; i++, out += shape->words) {
        const char *data;
        Py_ssize_t size;
        PyObject *item = PyList_GetItem(items, i);
        if (item == NULL)
            return -1;
        if (!bytes_of(item, &data, &size))
            return 0;
        digest(shape, data, size, out);
    }
    return 1;
}

static Py_ssize_t count_of(PyObject *items)
{
    if (PyList_Check(items))
        return PyList_Size(items);
    PyErr_SetString(PyExc_TypeError, "items must be a list");
    return -1;
}

static void *allocate(Py_ssize_t count, size_t size)
{
    void *made = NULL;
    if ((size_t)count <= (size_t)PY_SSIZE_T_MAX / size)
        made = PyMem_Malloc(count ? (size_t)count * size : 1);
    if (made == NULL)
        PyErr_NoMemory();
    return made;
}

/* Bytes to be filled, an array of words. */
static PyObject *new_words(Py_ssize_t count, uint32_t words, uint64_t **at)
{
    PyObject *made = NULL;
    const Py_ssize_t size = words * (Py_ssize_t)sizeof(uint64_t);
    if (count <= PY_SSIZE_T_MAX / (2 * size))
        made = PyBytes_FromStringAndSize(NULL, count * size);
    else
        PyErr_NoMemory();
    *at = made ? (uint64_t *)PyBytes_AsString(made) : NULL;
    return made;
}

static Places *allocate_places(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return (Places *)alloc(type, 0);
}

/* Places(shard_bits, num_hashes, shards, seeds or None) */
static PyObject *places_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", "", NULL};
    long long bits;
    Py_ssize_t hashes, shards;
    PyObject *seeds;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LnnO:Places", names, &bits, &hashes, &shards,
                                     &seeds))
        return NULL;
    if (bits < 1 || (uint64_t)bits > MAX_BITS || hashes < 1 || hashes > MAX_HASHES || shards < 1 ||
        shards > MAX_SHARDS) {
        PyErr_SetString(PyExc_ValueError, "no shape of a filter");
        return NULL;
    }
    Places *self = allocate_places(type);
    if (self == NULL)
        return NULL;
    Shape *shape = &self->shape;
    shape->bits = (uint64_t)bits;
    shape->hashes = (uint32_t)hashes;
    shape->shards = (uint32_t)shards;
    shape->words = 2;
    if (seeds == Py_None)
        return (PyObject *)self;
    shape->seeded = shape->words = shape->hashes;
    int is_one_each = PyTuple_Check(seeds) && PyTuple_Size(seeds) == hashes;
    for (Py_ssize_t i = 0; is_one_each && i < hashes; i++) {
        unsigned long long seed = PyLong_AsUnsignedLongLong(PyTuple_GetItem(seeds, i));
        is_one_each = !PyErr_Occurred() && seed <= 0xffffffff;
        shape->seeds[i] = (uint32_t)seed;
    }
    if (!is_one_each) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "seeds must be num_hashes numbers below 2^32");
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void places_dealloc(PyObject *object)
{
    Places *self = (Places *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    while (self->held)
        PyBuffer_Release(&self->images[--self->held]);
    PyMem_Free(self->images);
    release(object);
    Py_DECREF(type);
}

static PyObject *places_digests(PyObject *object, PyObject *items)
{
    const Shape *shape = &((Places *)object)->shape;
    uint64_t *words;
    Py_ssize_t count = count_of(items);
    PyObject *made = count < 0 ? NULL : new_words(count, shape->words, &words);
    int done = made ? digest_all(shape, items, count, words) : -1;
    if (done > 0)
        return made;
    Py_XDECREF(made);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* Take a view of digests and return their number; -1: raised. */
static Py_ssize_t take_digests(const Shape *shape, PyObject *object, Py_buffer *view)
{
    const Py_ssize_t size = shape->words * (Py_ssize_t)sizeof(uint64_t);
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return -1;
    if (view->len % size == 0)
        return view->len / size;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "the digests have another length");
    return -1;
}

static inline void read_digest(const Shape *shape, const Py_buffer *view, Py_ssize_t row,
                               uint64_t *words)
{
    const size_t size = shape->words * sizeof(uint64_t);
    memcpy(words, (const char *)view->buf + (size_t)row * size, size);
}

/* packed(digests, first): offsets of four bytes, big-endian; the bitmap begins at bit `first` */
static PyObject *places_packed(PyObject *object, PyObject *args)
{
    const Shape *shape = &((Places *)object)->shape;
    PyObject *digests;
    Py_buffer view;
    uint64_t words[MAX_HASHES];
    uint32_t places[MAX_HASHES];
    unsigned int first;
    if (!PyArg_ParseTuple(args, "OI:packed", &digests, &first))
        return NULL;
    Py_ssize_t count = take_digests(shape, digests, &view);
    if (count < 0)
        return NULL;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, count * shape->hashes * 4);
    uint8_t *at = packed == NULL ? NULL : (uint8_t *)PyBytes_AsString(packed);
    for (Py_ssize_t row = 0; at != NULL && row < count; row++) {
        read_digest(shape, &view, row, words);
        place(shape, words, places);
        for (uint32_t i = 0; i < shape->hashes; i++, at += 4) {
            uint32_t offset = __builtin_bswap32(places[i] + first);
            memcpy(at, &offset, 4);
        }
    }
    PyBuffer_Release(&view);
    return packed;
}

/* Bits in memory. */

/* over(images): the same places, with a bitmap in memory for each shard */
static PyObject *places_over(PyObject *object, PyObject *images)
{
    Places *self = allocate_places(Py_TYPE(object));
    if (self == NULL)
        return NULL;
    self->shape = ((Places *)object)->shape;
    self->images = allocate(self->shape.shards, sizeof(Py_buffer));
    int is_whole = self->images != NULL && PyTuple_Check(images) &&
                   PyTuple_Size(images) == self->shape.shards;
    for (uint32_t i = 0; is_whole && i < self->shape.shards; i++) {
        Py_buffer *view = &self->images[i];
        is_whole = PyObject_GetBuffer(PyTuple_GetItem(images, i), view, PyBUF_WRITABLE) == 0;
        self->held += (uint32_t)is_whole;
        if (is_whole)
            is_whole = view->len == (Py_ssize_t)(FIRST_BYTE + (self->shape.bits + 7) / 8);
    }
    if (!is_whole) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "an image is missing, or has another length");
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static inline uint8_t *bitmap_of(const Places *self, uint32_t shard)
{
    return (uint8_t *)self->images[shard].buf + FIRST_BYTE;
}

/* Return whether all bits were set; with `write` set those that were not. */
static inline int take_bits(uint8_t *bitmap, const uint32_t *places, uint32_t hashes, int write)
{
    int was_set = 1;
    for (uint32_t i = 0; i < hashes; i++) {
        uint8_t *cell = &bitmap[places[i] >> 3];
        uint8_t mask = (uint8_t)(128 >> (places[i] & 7)), byte = LOAD(cell);
        if (byte & mask)
            continue;
        was_set = 0;
        if (!write)
            break;
        STORE(cell, (uint8_t)(byte | mask));
    }
    return was_set;
}

/* Find the places of one item and return its bitmap; NULL: there is none, or Python has to look. */
static inline uint8_t *find(const Places *self, PyObject *item, uint32_t *places)
{
    uint64_t words[MAX_HASHES];
    const char *data;
    Py_ssize_t size;
    if (!self->held || !bytes_of(item, &data, &size))
        return NULL;
    digest(&self->shape, data, size, words);
    place(&self->shape, words, places);
    return bitmap_of(self, shard_of(&self->shape, words[0]));
}

static PyObject *places_add(PyObject *object, PyObject *item)
{
    Places *self = (Places *)object;
    uint32_t places[MAX_HASHES];
    uint8_t *bitmap;
    if (self->added >= self->limit || (bitmap = find(self, item, places)) == NULL)
        return Py_NewRef(Py_None);
    if (take_bits(bitmap, places, self->shape.hashes, 1))
        return Py_NewRef(Py_False);
    self->added++;
    return Py_NewRef(Py_True);
}

static PyObject *places_exists(PyObject *object, PyObject *item)
{
    const Places *self = (Places *)object;
    uint32_t places[MAX_HASHES];
    uint8_t *bitmap = find(self, item, places);
    if (bitmap == NULL)
        return Py_NewRef(Py_None);
    return PyBool_FromLong(take_bits(bitmap, places, self->shape.hashes, 0));
}

static inline Py_ssize_t smaller(Py_ssize_t a, Py_ssize_t b) { return a < b ? a : b; }

/* Note for each item whether it was there, in order; with `write` add those that were not. Some
   items are placed ahead, so that the processor fetches their bytes in between. */
static void take_all(const Places *self, const Py_buffer *digests, Py_ssize_t count, int write,
                     uint8_t *found)
{
    const Shape *shape = &self->shape;
    uint64_t words[MAX_HASHES];
    uint32_t places[ROWS_AHEAD][MAX_HASHES];
    uint8_t *bitmaps[ROWS_AHEAD];
    for (Py_ssize_t first = 0; first < count; first += ROWS_AHEAD) {
        Py_ssize_t rows = smaller(ROWS_AHEAD, count - first);
        for (Py_ssize_t i = 0; i < rows; i++) {
            read_digest(shape, digests, first + i, words);
            bitmaps[i] = bitmap_of(self, shard_of(shape, words[0]));
            place(shape, words, places[i]);
            for (uint32_t j = 0; j < shape->hashes; j++)
                PREFETCH(&bitmaps[i][places[i][j] >> 3]);
        }
        for (Py_ssize_t i = 0; i < rows; i++)
            found[first + i] = (uint8_t)take_bits(bitmaps[i], places[i], shape->hashes, write);
    }
}

/* Return a byte for each digest, 1 if the item was there (with `write`: not there). */
static PyObject *take_many(const Places *self, PyObject *digests, int write)
{
    Py_buffer view;
    Py_ssize_t count = take_digests(&self->shape, digests, &view);
    if (count < 0)
        return NULL;
    PyObject *answers = self->held ? PyBytes_FromStringAndSize(NULL, count) : NULL;
    if (answers != NULL) {
        uint8_t *found = (uint8_t *)PyBytes_AsString(answers);
        if (write) {
            take_all(self, &view, count, 1, found);
        } else {
            Py_BEGIN_ALLOW_THREADS
            take_all(self, &view, count, 0, found);
            Py_END_ALLOW_THREADS
        }
        for (Py_ssize_t i = 0; i < count; i++)
            found[i] ^= (uint8_t)write;
    } else if (!self->held) {
        PyErr_SetString(PyExc_ValueError, "there are no images");
    }
    PyBuffer_Release(&view);
    return answers;
}

static PyObject *places_exists_many(PyObject *object, PyObject *digests)
{
    return take_many((Places *)object, digests, 0);
}

static PyObject *places_add_many(PyObject *object, PyObject *digests)
{
    return take_many((Places *)object, digests, 1);
}

static PyObject *places_combine(PyObject *object, PyObject *given)
{
    Places *self = (Places *)object, *other = (Places *)given;
    if (Py_TYPE(given) != Py_TYPE(object)) {
        PyErr_SetString(PyExc_TypeError, "other must be Places");
        return NULL;
    }
    if (other->shape.bits != self->shape.bits || other->held != self->held) {
        PyErr_SetString(PyExc_ValueError, "other has another shape");
        return NULL;
    }
    for (uint32_t shard = 0; shard < self->held; shard++) {
        uint8_t *mine = self->images[shard].buf;
        const uint8_t *theirs = other->images[shard].buf;
        Py_ssize_t size = self->images[shard].len;
        for (Py_ssize_t start = 0; start < size; start += MERGE_BYTES) {
            Py_ssize_t stop = smaller(start + MERGE_BYTES, size);
            for (Py_ssize_t i = start; i < stop; i++)
                STORE(&mine[i], (uint8_t)(mine[i] | theirs[i]));
            Py_BEGIN_ALLOW_THREADS /* others have their turn between two parts */
            Py_END_ALLOW_THREADS
        }
    }
    return Py_NewRef(Py_None);
}

static PyObject *places_clear(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    Places *self = (Places *)object;
    for (uint32_t shard = 0; shard < self->held; shard++)
        memset(self->images[shard].buf, 0, (size_t)self->images[shard].len);
    return Py_NewRef(Py_None);
}

/* Commands. */

static inline int digits_of(uint64_t number, char text[DIGITS])
{
    int count = 0;
    do {
        text[DIGITS - ++count] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return count;
}

static const char SET_HEAD[] = "$3\r\nSET\r\n$2\r\nu1\r\n$", SET_END[] = "\r\n$1\r\n1\r\n";
static const char GET_HEAD[] = "$3\r\nGET\r\n$2\r\nu1\r\n$", GET_END[] = "\r\n";
#define LONGEST_OPERATION (Py_ssize_t)(sizeof(SET_HEAD) + 4 + DIGITS + sizeof(SET_END))

/* Append the operation of one bit, whose offset is below 2^32. */
static inline char *append_operation(char *at, uint64_t offset, int write)
{
    char text[DIGITS];
    int digits = digits_of(offset, text);
    const char *end = write ? SET_END : GET_END;
    size_t size = write ? sizeof(SET_END) - 1 : sizeof(GET_END) - 1;
    memcpy(at, write ? SET_HEAD : GET_HEAD, sizeof(SET_HEAD) - 1);
    at += sizeof(SET_HEAD) - 1;
    if (digits == DIGITS)
        *at++ = '1';
    *at++ = (char)('0' + digits % 10);
    *at++ = '\r';
    *at++ = '\n';
    memcpy(at, text + DIGITS - digits, (size_t)digits);
    at += digits;
    memcpy(at, end, size);
    return at + size;
}

/* operations(digests, write): the shard of the first item, and the operations of all */
static PyObject *places_operations(PyObject *object, PyObject *args)
{
    const Shape *shape = &((Places *)object)->shape;
    PyObject *digests, *made = NULL;
    Py_buffer view;
    uint64_t words[MAX_HASHES];
    uint32_t places[MAX_HASHES], shard = 0;
    int write;
    if (!PyArg_ParseTuple(args, "Op:operations", &digests, &write))
        return NULL;
    Py_ssize_t count = take_digests(shape, digests, &view);
    if (count < 0)
        return NULL;
    char *text = allocate(count * shape->hashes, LONGEST_OPERATION), *at = text;
    for (Py_ssize_t row = 0; text != NULL && row < count; row++) {
        read_digest(shape, &view, row, words);
        shard = row ? shard : shard_of(shape, words[0]);
        place(shape, words, places);
        for (uint32_t i = 0; i < shape->hashes; i++)
            at = append_operation(at, (uint64_t)places[i] + FIRST_BIT, write);
    }
    if (text != NULL)
        made = Py_BuildValue("(IN)", shard, PyBytes_FromStringAndSize(text, at - text));
    PyMem_Free(text);
    PyBuffer_Release(&view);
    return made;
}

/* missing(reply): for each item whether one of its bits is 0; a header comes before the bits */
static PyObject *places_missing(PyObject *object, PyObject *reply)
{
    Py_ssize_t hashes = ((Places *)object)->shape.hashes, bits = PyList_Size(reply) - 1;
    if (bits < 0 || bits % hashes) {
        PyErr_SetString(PyExc_ValueError, "the reply has another number of bits");
        return NULL;
    }
    PyObject *missing = PyList_New(bits / hashes);
    for (Py_ssize_t row = 0; missing != NULL && row < bits / hashes; row++) {
        int is_set = 1;
        for (Py_ssize_t i = 0; is_set > 0 && i < hashes; i++)
            is_set = PyObject_IsTrue(PyList_GetItem(reply, 1 + row * hashes + i));
        if (is_set < 0 || PyList_SetItem(missing, row, PyBool_FromLong(!is_set)) < 0)
            Py_CLEAR(missing);
    }
    return missing;
}

/* The module. */

static PyMethodDef places_methods[] = {
    {"add", places_add, METH_O,
     "Add an item within the limit, return whether it is new; None: Python has to."},
    {"add_many", places_add_many, METH_O,
     "Add items by their digests, one by one; return which are new."},
    {"clear", places_clear, METH_NOARGS, "Clear every bit, the header's too."},
    {"combine", places_combine, METH_O, "Set the bits that are set in another."},
    {"digests", places_digests, METH_O, "Return the digests of items; None: Python has to."},
    {"exists", places_exists, METH_O, "Return whether all bits are 1; None: Python has to."},
    {"exists_many", places_exists_many, METH_O, "Test items by their digests."},
    {"missing", places_missing, METH_O, "Return which items of a BITFIELD's reply lack a bit."},
    {"operations", places_operations, METH_VARARGS,
     "Return the shard of the first of some digests, and the operations of BITFIELD for all."},
    {"over", places_over, METH_O, "Return the same places with images of all shards."},
    {"packed", places_packed, METH_VARARGS, "Return the offsets of digests, four bytes each."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef places_members[] = {
    {"added", T_ULONGLONG, offsetof(Places, added), READONLY, NULL},
    {"limit", T_ULONGLONG, offsetof(Places, limit), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot places_slots[] = {
    {Py_tp_doc, "Offsets of items in the shards of one filter, and bits in memory."},
    {Py_tp_new, places_new},
    {Py_tp_dealloc, places_dealloc},
    {Py_tp_methods, places_methods},
    {Py_tp_members, places_members},
    {0, NULL},
};

static PyType_Spec places_spec = {
    .name = "bloomlock._speed.Places",
    .basicsize = sizeof(Places),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = places_slots,
};

static int execute(PyObject *module)
{
    PyObject *places = PyType_FromModuleAndSpec(module, &places_spec, NULL);
    int failed = places == NULL || PyModule_AddType(module, (PyTypeObject *)places) < 0;
    Py_XDECREF(places);
    return failed ? -1 : PyModule_AddStringConstant(module, "VERSION", BLOOMLOCK_VERSION);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "bloomlock._speed",
    .m_doc = "The inner loops of bloomlock in C.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__speed(void) { return PyModuleDef_Init(&definition); }
