// main.ts: the program of doc/usage/nestjs.md.
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { IdemqModule } from 'idemq/nestjs';
import { OrdersModule } from './orders.js';

@Module({ imports: [IdemqModule.forRoot({ connection: process.env.DSN!, grace: 30 }), OrdersModule] })
export class AppModule {}

const app = await NestFactory.createApplicationContext(AppModule);
app.enableShutdownHooks(); // SIGTERM closes the application, which drains the worker
