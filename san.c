#include <stdio.h>
#include <stdlib.h>
int main(void){ char*p=malloc(100); p=0; puts("ran"); return 0; }
